"""Two rollouts at once, each with notes of its own and a glossary that they share.

    sandboxd serve --config examples/mcp/sandboxd.toml      # its `source` set to this folder
    python3 examples/mcp/rollouts.py

The clients are of both eras of the protocol: one begins with `initialize` and has a session, the
other says all there is to know in each request. Neither sees or gives the argument `user`, which
the lease's label fills.
"""

from __future__ import annotations

import anyio
from mcp import Client

from sandboxd_client import AsyncSandbox, AsyncSandboxd


async def main() -> None:
    """Both rollouts."""
    async with AsyncSandboxd() as sandboxd, anyio.create_task_group() as tasks:
        tasks.start_soon(rollout, sandboxd, "ada", "legacy")
        tasks.start_soon(rollout, sandboxd, "bob", "auto")


async def rollout(sandboxd: AsyncSandboxd, user: str, mode: str) -> None:
    """One rollout: what a model would do with its tools, and what its server remembers."""
    async with sandboxd.lease("python", labels={"user": user}, timeout_s=300) as sandbox:
        meaning = await use(sandbox, "glossary", "explain", mode=mode, word="lease")
        await use(sandbox, "notes", "take_note", mode=mode, text=meaning)
        notes = await use(sandbox, "notes", "read_notes", mode=mode)
        print(notes)


async def use(sandbox: AsyncSandbox, server: str, tool: str, *, mode: str, **given: str) -> str:
    """Call one tool, by an address alone, as any client of MCP could."""
    token = await sandbox.token()
    async with Client(sandbox.mcp_url(server, token=token), mode=mode) as client:
        result = await client.call_tool(tool, given)
    text: str = result.content[0].text  # type: ignore[union-attr]
    return text


anyio.run(main)
