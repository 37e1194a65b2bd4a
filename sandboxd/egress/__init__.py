"""The way out: what a sandbox may reach, and the daemon's end of each connection that it makes."""
