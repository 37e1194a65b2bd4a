"""MCP servers of leases: started, kept, spoken to by clients of either era of the protocol.

What imports the `mcp` package is loaded when the first server is spoken to: it takes most of a
second, which a daemon without MCP servers does not pay.
"""
