"""The doors: parse, authenticate, call one service, render. No state, no decisions."""
