# Generated from client/sandboxd_client/_async/__init__.py by scripts/unasync.py.
# Edit the source, then run the script.
"""The synchronous SDK, written by hand; `_sync/` is generated from it."""
