"""The ways to guests: by a socket where the engine is on this machine, else by TCP."""
