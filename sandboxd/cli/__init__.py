"""The command line.

A verb's room is loaded when the verb is called, so that `--help` is quick and client verbs work
where only the SDK is installed.
"""

from sandboxd.cli.program import main

__all__ = ["main"]
