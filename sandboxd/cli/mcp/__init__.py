"""What the command line has of MCP."""
