"""sandboxd: a sandbox for every rollout. The daemon's package; see `docs/architecture.md`."""

__version__ = "0.1.0"
