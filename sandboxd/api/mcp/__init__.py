"""The door to MCP servers: led by the address alone, to a bridge or to a port inside."""
