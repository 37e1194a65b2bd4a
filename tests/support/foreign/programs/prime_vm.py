"""What a user of prime-sandboxes does with a VM sandbox; prints what came of it as JSON."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from prime_sandboxes import AsyncSandboxClient, CreateSandboxRequest, StartCommand
from prime_sandboxes.exceptions import CommandTimeoutError, SandboxFileNotFoundError

BYTES = bytes(range(256)) * 5000 + b"\r\n--almost a boundary\r\n"


async def commands(client, box, told):
    def shown(result):
        return [result.stdout, result.stderr, result.exit_code]

    told["command"] = shown(
        await client.execute_command(
            box, "echo $A $S $E; pwd; echo err >&2; exit 3",
            working_dir="/tmp", env={"E": "own"},
        )
    )  # fmt: skip
    told["heredoc"] = shown(await client.execute_command(box, "cat <<'X'\nit's \"quoted\"\nX"))
    told["long"] = len((await client.execute_command(box, "yes é | head -c 3000000")).stdout)
    told["signal"] = (await client.execute_command(box, "kill -SEGV $$")).exit_code
    try:
        await client.execute_command(box, "echo $$ > /tmp/pid; sleep 60 & sleep 60", timeout=1)
    except CommandTimeoutError as error:
        told["timeout"] = type(error).__name__
    left = "for i in 1 2 3 4 5 6 7 8 9 10; do pgrep -c sleep >/dev/null || exit 0; sleep 0.5; done"
    told["left"] = shown(
        await client.execute_command(
            box, left.replace("pgrep -c sleep", "grep -qs sleep /proc/[0-9]*/comm")
        )
    )[2]
    try:
        await client.execute_command(box, "true", working_dir="/not/there")
    except Exception as error:
        told["bad_cwd"] = [type(error).__name__, str(error)]


async def files(client, box, told):
    up = await client.upload_bytes(box, "/workspace/deep/er/x.bin", BYTES, "x.bin")
    with tempfile.TemporaryDirectory() as place:
        down = Path(place) / "x.bin"
        await client.download_file(box, "/workspace/deep/er/x.bin", str(down))
        told["files"] = [up.success, up.size == len(BYTES), down.read_bytes() == BYTES]
    await client.upload_bytes(box, "/tmp/empty", b"", "empty")
    told["empty"] = (await client.read_file(box, "/tmp/empty")).content
    await client.upload_bytes(box, "/tmp/text", b"0123456789\xff", "text")
    window = await client.read_file(box, "/tmp/text", offset=-4, length=3)
    told["window"] = [window.content, window.total_size, window.offset, window.truncated]
    try:
        await client.read_file(box, "/nothing")
    except SandboxFileNotFoundError as error:
        told["no_file"] = type(error).__name__


async def jobs(client, box, told):
    job = await client.start_background_job(box, "sleep 2; echo out; echo err >&2; exit 7")
    first = (await client.get_background_job_statuses([job]))[0]
    done = await client.run_background_job(box, "echo hi; exit 4", timeout=30)
    while not (late := (await client.get_background_job_statuses([job]))[0]).completed:
        await asyncio.sleep(0.2)
    told["job"] = [first.completed, done.stdout, done.exit_code, late.exit_code]
    lost = await client.start_background_job(box, "sleep 100")
    await client.execute_command(box, f"kill -9 $(cat /tmp/job_{lost.job_id}.launch/pid)")
    try:
        await client.get_background_job_statuses([lost])
    except Exception as error:
        told["lost_job"] = str(error)


async def processes(client, box, told):
    process = await client.open_process(box, "while read line; do echo got $line; done")
    await process.write_stdin(b"a\n")
    said = await anext(process.stdout)
    await process.write_stdin(b"b\n")
    said += await anext(process.stdout)
    await process.terminate()
    told["process"] = [said.decode(), await process.wait() > 128]
    await process.aclose()
    short = await client.open_process(box, "echo short; exit 9")
    told["short"] = [(await anext(short.stdout)).decode(), await short.wait()]
    await short.aclose()


async def main():
    told = {}
    async with AsyncSandboxClient() as client:
        sandbox = await client.create(
            CreateSandboxRequest(
                name="Sdk__test", docker_image="python:3.11-slim", timeout_minutes=-1,
                idle_timeout_minutes=60, labels=["sdk"], environment_vars={"A": "plain"},
                secrets={"S": "secret"},
                start_command=StartCommand(executable="sh", args=["-c", "echo began; sleep 600"]),
            )
        )  # fmt: skip
        await client.wait_for_creation(sandbox.id)
        box = sandbox.id
        await commands(client, box, told)
        await files(client, box, told)
        await jobs(client, box, told)
        await processes(client, box, told)
        told["logs"] = await client.get_logs(box)
        await client.delete(box)
        await client.delete(box)
        try:
            await client.execute_command(box, "true")
        except Exception as error:
            told["after"] = type(error).__name__
    json.dump(told, sys.stdout)


asyncio.run(main())
