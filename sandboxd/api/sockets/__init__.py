"""WebSockets of ours, once they are accepted."""
