# Generated from client/sandboxd_client/_async/__init__.py by scripts/unasync.py: edit that, and run this.
"""The synchronous SDK, written by hand; `_sync/` is generated from it."""
