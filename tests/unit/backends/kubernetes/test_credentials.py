"""Keys that stand in a file of credentials."""

from __future__ import annotations

import base64
from pathlib import Path

from sandboxd.backends.kubernetes.talking.credentials import empty_keys_dir, read_access

_KEY = base64.b64encode(b"a key").decode()


def test_keys_lie_where_the_daemon_takes_them_away_when_it_starts_again(tmp_path: Path) -> None:
    file, keys_dir = tmp_path / "kubeconfig", tmp_path / "state" / "keys"
    file.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: k, cluster: {server: 'https://k',"
        f" {_data('certificate-authority')}}}}}]\n"
        f"users: [{{name: u, user: {{{_data('client-certificate')}, {_data('client-key')}}}}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
    )
    for _ in range(2):
        empty_keys_dir(keys_dir)
        assert (keys_dir.stat().st_mode & 0o777, list(keys_dir.iterdir())) == (0o700, [])
        configuration = read_access(file, "", keys_dir=keys_dir).api.configuration
        for name in (configuration.cert_file, configuration.key_file, configuration.ssl_ca_cert):
            key = Path(name)
            assert (key.parent, key.read_bytes()) == (keys_dir, b"a key")
            assert key.stat().st_mode & 0o077 == 0


def _data(name: str) -> str:
    return f"{name}-data: {_KEY}"
