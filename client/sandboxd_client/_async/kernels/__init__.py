"""Jupyter kernels in a sandbox, and their cells."""
