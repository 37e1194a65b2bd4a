"""What travels between daemon, SDK and guest: codes, enums, frames, one HTTP/1.1 connection.

Pure Python, imported by the SDK on every platform; knows nothing of the daemon.
"""
