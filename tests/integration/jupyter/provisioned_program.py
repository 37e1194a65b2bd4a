"""Starts a kernel by the provisioner, uses it in every way, shuts it down; prints what it saw.

argv: `blocking`, `asynchronous`, `replaced`, `outlived`, or `leave` to end without shutting it
down.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import AsyncKernelManager, KernelManager

from sandboxd_client import Sandboxd

PATIENCE_S = 60.0
NAME = "sandboxed"


def collected(seen: list[Any]) -> Any:
    """A hook that notes what a cell shows."""

    def note(message: dict[str, Any]) -> None:
        content = message["content"]
        found = content.get("text") or content.get("data", {}).get("text/plain")
        if found or "ename" in content:
            seen.append(found or content["ename"])

    return note


def started() -> tuple[KernelManager, BlockingKernelClient, Callable[[str], list[Any]]]:
    """A kernel, a client of it, and what a cell shows."""
    manager = KernelManager(kernel_name=NAME)
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=PATIENCE_S)

    def run(code: str) -> list[Any]:
        seen: list[Any] = []
        client.execute_interactive(code, timeout=PATIENCE_S, output_hook=collected(seen))
        return seen

    return manager, client, run


def until_dead(manager: KernelManager) -> None:
    due = time.monotonic() + PATIENCE_S
    while manager.is_alive() and time.monotonic() < due:
        time.sleep(0.05)


def blocking() -> dict[str, Any]:
    manager, client, run = started()
    told: dict[str, Any] = {"where": run("import os; print(os.getcwd(), os.environ['HELLO'])")}
    told["secrets"] = run("print([name for name in os.environ if name.startswith('SANDBOXD_')])")
    run("kept = 1")
    threading.Timer(0.7, manager.interrupt_kernel).start()
    told["interrupted"] = run("import time\nwhile True: time.sleep(0.05)")
    told["too large"] = run(f"x = '{'x' * (17 << 20)}'")
    told["kept"] = run("print(kept)")
    for now in (False, True):
        manager.restart_kernel(now=now)
        client.wait_for_ready(timeout=PATIENCE_S)
        told[f"restarted {now}"] = run("kept")
    told["alive"] = manager.is_alive()
    client.execute("import os; os._exit(1)")
    until_dead(manager)
    told["alive after its end"] = manager.is_alive()
    manager.restart_kernel()
    client.wait_for_ready(timeout=PATIENCE_S)
    told["revived"] = run("print('again')")
    client.stop_channels()
    manager.shutdown_kernel()
    told["alive at last"] = manager.is_alive()
    return told


def replaced() -> dict[str, Any]:
    """Its sandbox is lost, and a restart gives it another one, for the clients that there are."""
    manager, client, run = started()
    with Sandboxd() as sandboxes:
        (lost,) = sandboxes.sandboxes()
        sandboxes.sandbox(lost.id).release()
        until_dead(manager)
        told: dict[str, Any] = {"alive": manager.is_alive()}
        manager.restart_kernel()
        client.wait_for_ready(timeout=PATIENCE_S)
        told["printed"] = run("print('again')")
        told["another"] = [each.id != lost.id for each in sandboxes.sandboxes()]
    client.stop_channels()
    manager.shutdown_kernel()
    return told


def outlived() -> dict[str, Any]:
    """Says `on` on standard error; then its daemon is killed, and another one started."""
    manager, client, run = started()
    many = "import time\nfor i in range(300): print(i, flush=True); time.sleep(0.005)"
    first = client.execute(many)
    others = [client.execute("print(0, file=open('ran', 'a'))") for _ in range(3)]
    printed = ""
    idle: set[str] = set()
    while idle != {first, *others}:
        message = client.get_iopub_msg(timeout=PATIENCE_S)
        content, parent = message["content"], message["parent_header"].get("msg_id")
        if content.get("execution_state") == "idle":
            idle.add(parent)
        elif message["msg_type"] == "stream":
            if not printed:
                print("on", file=sys.stderr, flush=True)
            printed += content["text"]
    replies = {
        client.get_shell_msg(timeout=PATIENCE_S)["parent_header"]["msg_id"] for _ in range(4)
    }
    told = {
        "all printed": printed == "".join(f"{i}\n" for i in range(300)),
        "all answered": replies == idle,
        "ran": run("print(open('ran').read().split())"),
    }
    client.stop_channels()
    manager.shutdown_kernel()
    return told


async def asynchronous() -> dict[str, Any]:
    managers = [AsyncKernelManager(kernel_name=NAME) for _ in range(2)]
    await asyncio.gather(*(manager.start_kernel() for manager in managers))
    told: dict[str, Any] = {"printed": []}
    for number, manager in enumerate(managers):
        client = manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=PATIENCE_S)
        seen: list[Any] = []
        await client.execute_interactive(
            f"print({number})", timeout=PATIENCE_S, output_hook=collected(seen)
        )
        told["printed"] += seen
        client.stop_channels()
    await asyncio.gather(*(manager.shutdown_kernel(now=True) for manager in managers))
    told["alive at last"] = [await manager.is_alive() for manager in managers]
    return told


def leave() -> dict[str, Any]:
    manager = KernelManager(kernel_name=NAME)
    manager.start_kernel()
    return {"alive": manager.is_alive()}


if sys.argv[1] == "asynchronous":
    answer = asyncio.run(asynchronous())
else:
    verbs = {"blocking": blocking, "leave": leave, "replaced": replaced, "outlived": outlived}
    answer = verbs[sys.argv[1]]()
print(json.dumps(answer))
