"""Clients of MCP over streamable HTTP, of both eras. Loaded when the first of them comes: the `mcp`
package takes most of a second.
"""
