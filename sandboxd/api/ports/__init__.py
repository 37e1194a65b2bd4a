"""The door to ports inside: HTTP and WebSockets passed on as they flow, and nothing of ours.

Bytes of bodies and frames are looked at only as far as their ends must be known.
"""
