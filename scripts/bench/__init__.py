"""The bench: what the service must reach, measured on this machine, pairs in turn in one run."""
