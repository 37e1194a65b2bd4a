"""Jupyter kernels in leased sandboxes: cells that end once, with everything they showed.

The guest holds a kernel's sockets and keeps what it says; here its messages are signed, read, and
put together to cells. Knows nothing of HTTP.
"""
