"""How programs inside find the proxy: by a port, and by variables that most of them read. Pure."""

from __future__ import annotations

from collections.abc import Mapping

PROXY_PORT = 3128  # another one where something of the image's listens there


def proxy_env(port: int | None, given: Mapping[str, str]) -> dict[str, str]:
    """The variables, but for those that were given, in whichever case."""
    if port is None:
        return {}
    url, local = f"http://127.0.0.1:{port}", "localhost,127.0.0.1,::1"
    values = {"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": local}
    known = {name.lower() for name in given}
    return {
        spelled: value
        for name, value in values.items()
        if name not in known
        for spelled in (name, name.upper())
    }
