#!/bin/sh
# Puts the daemon into /opt/sandboxd: `install.sh requirements`, then `install.sh daemon`. As root, with this folder at /setup.
# Beside it lie the wheel of this project, whatever other wheels there are, and ca.pem, which is trusted while we build.
set -eu
umask 022
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
place=/opt/sandboxd

if [ -s ca.pem ]; then
  export SSL_CERT_FILE="$PWD/ca.pem" PIP_CERT="$PWD/ca.pem"
  [ ! -d /etc/apt/apt.conf.d ] || echo "Acquire::https::CaInfo \"$PWD/ca.pem\";" >/etc/apt/apt.conf.d/99setup
fi

requirements() { # all that this project stands on, but not itself: changes seldom
  if ! python3 -c 'import ensurepip, venv' >/dev/null 2>&1; then # a bare Debian
    printf 'path-exclude=/usr/share/%s/*\n' doc man info locale lintian >/etc/dpkg/dpkg.cfg.d/sandboxd
    echo 'path-include=/usr/share/doc/*/copyright' >>/etc/dpkg/dpkg.cfg.d/sandboxd
    apt-get update -q
    apt-get install -q -y --no-install-recommends ca-certificates python3 python3-venv
  fi
  python3 -m venv "$place"
  "$place/bin/pip" install -q --find-links . -r requirements.txt
}

daemon() { # this project; then nothing is left that only installs
  "$place/bin/pip" install -q --no-deps ./sandboxd-*.whl
  "$place/bin/sandboxd" --version
  rm -rf "$place"/bin/pip* "$place"/bin/[Aa]ctivate* "$place"/lib/python3*/site-packages/pip "$place"/lib/python3*/site-packages/pip-*
  rm -rf "$place"/lib/python3*/site-packages/setuptools* "$place"/lib/python3*/site-packages/pkg_resources
  rm -rf "$place"/lib/python3*/site-packages/_distutils_hack "$place"/lib/python3*/site-packages/distutils-precedence.pth
  if [ -f /etc/dpkg/dpkg.cfg.d/sandboxd ]; then # the Debian of `requirements`
    apt-get purge -q -y --auto-remove python3-venv
    apt-get clean
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* /var/log/* /tmp/* /var/tmp/* ~root/.cache
    rm -rf /usr/share/man/* /usr/share/info/* /usr/share/locale/* /usr/share/lintian
    rm -f /etc/machine-id /etc/.pwd.lock
  fi
  rm -f /etc/apt/apt.conf.d/99setup
  install -d -m 700 -o 10001 -g 10001 /var/lib/sandboxd
}

"$1"
