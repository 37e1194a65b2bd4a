"""The verbs that reach into a sandbox: commands, terminals, files."""
