# Generated from client/sandboxd_client/_async/kernels/__init__.py by scripts/unasync.py.
# Edit the source, then run the script.
"""Jupyter kernels in a sandbox, and their cells."""
