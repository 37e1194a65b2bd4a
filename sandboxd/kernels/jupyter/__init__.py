"""Clients that speak Jupyter's own protocol with a kernel: what they send, and what they hear."""
