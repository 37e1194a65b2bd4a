"""A guest agent in memory: speaks the guest protocol over a byte stream, runs scripted programs.

Knows nothing of the backend that holds it.
"""
