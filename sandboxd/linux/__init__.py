"""What the makers of boxes ask of the Linux kernel, one concern a file. Knows nothing of boxes."""
