"""The local backend: sandboxes on this machine through bubblewrap, with no engine, root or not."""

from sandboxd.backends.local.backend import LocalBackend
from sandboxd.backends.local.opening import LocalSettings, open_local

__all__ = ["LocalBackend", "LocalSettings", "open_local"]
