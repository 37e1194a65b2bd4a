#!/bin/sh
# Makes a root into one of our images: `install.sh base`, then `install.sh python`. As root, in it, with this folder at /setup.
# ca.pem beside it, if it is not empty, is trusted while we build; with KEEP_CA=1 for good.
set -eu
umask 022
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

trust() { # what fetches below believes the extra bundle as well
  [ -s ca.pem ] || return 0
  export SSL_CERT_FILE="$PWD/ca.pem" PIP_CERT="$PWD/ca.pem" GIT_SSL_CAINFO="$PWD/ca.pem"
  echo "Acquire::https::CaInfo \"$PWD/ca.pem\";" >/etc/apt/apt.conf.d/99setup
}

packages() { # documentation is not unpacked at all, except what the licences ask for
  printf 'path-exclude=/usr/share/%s/*\n' doc man info locale lintian >/etc/dpkg/dpkg.cfg.d/sandboxd
  echo 'path-include=/usr/share/doc/*/copyright' >>/etc/dpkg/dpkg.cfg.d/sandboxd
  apt-get update -q
  apt-get install -q -y --no-install-recommends "$@"
}

make_base() {
  packages bash ca-certificates git procps
  id agent >/dev/null 2>&1 || useradd --uid 1000 --create-home --shell /bin/bash agent
  install -d -m 1777 /workspace
  keep_ca
}

keep_ca() { # one file per certificate, as update-ca-certificates wants them
  [ "${KEEP_CA:-0}" = 1 ] && [ -s ca.pem ] || return 0
  awk '/BEGIN CERT/ {n++} n {print > sprintf("/usr/local/share/ca-certificates/extra-%03d.crt", n)}' ca.pem
  update-ca-certificates
}

make_python() {
  if ! python3 -m pip --version >/dev/null 2>&1; then packages python3 python3-pip python3-venv; fi
  command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python
  # The image is the environment: whoever lives in it may install into it.
  rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
  python3 -m pip install -q --no-cache-dir -r requirements.txt
  python3 -c 'import numpy, ipykernel, sys; from jupyter_client.kernelspec import KernelSpecManager as k
sys.exit("python3" not in k().find_kernel_specs())'
  python --version
}

clean() { # nothing of the machine we were built on, nothing that only a package manager reads
  apt-get clean
  rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* /var/log/* /tmp/* /var/tmp/* ~root/.cache
  rm -f /etc/apt/apt.conf.d/99setup /etc/machine-id /etc/.pwd.lock
  find /usr/share/doc -type f ! -name copyright -delete 2>/dev/null || true
  find /usr/share/doc -type l -delete 2>/dev/null || true
  rm -rf /usr/share/man/* /usr/share/info/* /usr/share/locale/* /usr/share/lintian
  # Half of all files would be one completer's notes on packages that are not here.
  for unused in tornado/test jedi/third_party/typeshed/stubs/* jedi/third_party/django-stubs/django-stubs/*; do
    rm -rf /usr/local/lib/python3*/*-packages/$unused
  done
  find /usr/local/lib/python3* -type d -name tests -path '*/numpy/*' -prune -exec rm -rf {} + 2>/dev/null || true
}

trust
"make_$1"
clean
