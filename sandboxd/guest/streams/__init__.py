"""Byte streams to a guest; nothing of what is spoken on them."""
