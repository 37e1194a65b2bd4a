"""A first rollout against a running daemon (`sandboxd serve`; SANDBOXD_API_URL says where)."""

import anyio

from sandboxd_client import AsyncSandboxd


async def main() -> None:
    """Lease a sandbox, run a program in it, judge it, give the sandbox back."""
    async with AsyncSandboxd() as client, client.lease("python", timeout_s=300) as sandbox:
        await sandbox.files.write("answer.txt", "42\n")
        result = await sandbox.exec("cat answer.txt", timeout_s=10)
        if result.mask:
            print("not the agent's doing: leave this rollout out", result.error)
        else:
            print("reward", float(result.ok and result.stdout == "42\n"))


anyio.run(main)
