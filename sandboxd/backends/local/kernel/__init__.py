"""What the local backend asks of the Linux kernel, one concern a file. Knows nothing of boxes."""
