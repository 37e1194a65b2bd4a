"""The nouns of the house, pure: no I/O, no clock, no HTTP."""
