"""One file a noun: each route parses, calls one service and renders."""
