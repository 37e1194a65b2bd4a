"""What a harness does with a box of the native runtime; prints what came of it as JSON."""

import asyncio
import json
import sys

from verifiers.v1.errors import SandboxError

from sandboxd_client import AsyncSandboxd
from sandboxd_client.integrations.verifiers import runtime


async def main():
    told = {}
    async with AsyncSandboxd() as client, runtime("python", client=client, timeout_s=300) as box:
        ran = await box.run(["sh", "-c", "pwd; echo $A; echo err >&2; exit 3"], {"A": "one"})
        told["run"] = [ran.stdout, ran.stderr, ran.exit_code]
        live = await box.open_process(["sh", "-c", "read line; echo got $line; exec sleep 60"], {})
        await live.write(b"a\n")
        told["said"] = (await anext(aiter(live.stdout))).decode()
        told["before"] = await live.poll()
        await live.kill()
        told["status"] = await live.wait()
        told["rest"] = [piece.decode() async for piece in live.stdout]
        await box.write("deep/er/x.bin", bytes(range(256)))
        told["file"] = len(await box.read("deep/er/x.bin"))
        for name, call in {
            "missing": box.read("nothing"),
            "large": box.read("deep/er/x.bin", max_bytes=10),
        }.items():
            try:
                await call
            except SandboxError as error:
                told[name] = str(error)
        await client.sandbox(box.info.id).release()
        try:
            await box.run(["true"], {})
        except SandboxError as error:
            told["gone"] = str(error)
        told["alive"] = await box.alive()
    json.dump(told, sys.stdout)


asyncio.run(main())
