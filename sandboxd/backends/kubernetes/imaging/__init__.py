"""Images on nodes before their first pod: a DaemonSet for each, and what it has come to."""
