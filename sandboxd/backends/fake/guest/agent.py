"""The fake guest agent: who it belongs to, how long it lives, and which call goes where."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

import anyio
from anyio.abc import ByteStream, TaskGroup

from sandboxd.backends.fake.guest.attach import Attached
from sandboxd.backends.fake.guest.execs import Exec, Execs, check_signal, deliver
from sandboxd.backends.fake.guest.file_calls import FileCalls
from sandboxd.backends.fake.guest.process import Program
from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.guest.server import Reply, Request, json_reply
from sandboxd.backends.fake.guest.shells import Shells
from sandboxd.backends.fake.guest.surroundings import Surroundings, check_command
from sandboxd.backends.fake.guest.tree import FileTree
from sandboxd.backends.fake.loopback import Listeners, Loopback, join_streams
from sandboxd.backends.fake.loopback import programs as loopback_programs
from sandboxd.backends.fake.terminal import Terminal, read_size
from sandboxd.backends.parts.deaths import LIFE_OVER, ORPHANED
from sandboxd.guest.messages import PROTOCOLS
from sandboxd.model.ids import is_caller_id, new_id

_MAX_READ_BYTES = 1 << 20


class FakeGuest:
    """Answers the calls of the guest protocol, number 3."""

    def __init__(
        self,
        group: TaskGroup,
        *,
        files: FileTree,
        programs: Mapping[str, Program],
        wall: Callable[[], float],
        orphan_limit_s: float,
    ) -> None:
        self.boot_id = new_id("boot")
        self.lease_id = ""
        self._setting_up = self._ready = False
        self._loopback = Loopback()
        self._listeners = Listeners(self._loopback)
        net = loopback_programs(self._loopback)
        self._surroundings = Surroundings(files, {**net, **programs})
        self._execs = Execs(group, wall=wall)
        self._shells = Shells(self._execs, self._surroundings)
        self._file_calls = FileCalls(files)
        self._files = files
        self._began = anyio.current_time()
        self._orphan_limit_s = orphan_limit_s
        self._dies_at: float | None = self._began + orphan_limit_s
        self._changed = anyio.Event()

    async def live(self) -> int:
        """Wait for the end of its life, by its hard end or for want of a daemon; its exit code."""
        while True:
            changed = self._changed
            left = None if self._dies_at is None else self._dies_at - anyio.current_time()
            if left is not None and left <= 0:
                return LIFE_OVER if self.lease_id else ORPHANED
            with anyio.move_on_after(left):
                await changed.wait()

    async def answer(self, request: Request) -> Reply:
        """Any call. Raises Refusal."""
        if not self.lease_id:
            self._live_until(anyio.current_time() + self._orphan_limit_s)
        if request.parts[:1] == ("files",):
            return await self._file_calls.answer(request)
        shape = (request.method, *(("*" if i == 1 else p) for i, p in enumerate(request.parts)))
        call = self._CALLS.get(shape)
        if call is None:
            raise Refusal("not_found", "there is no such call")
        return await call(self, request)

    def _live_until(self, at: float | None) -> None:
        self._dies_at = at
        self._changed.set()
        self._changed = anyio.Event()

    def _give_life(self, life_s: float | None) -> None:
        self._live_until(None if life_s is None else anyio.current_time() + float(life_s))

    async def _hello(self, request: Request) -> Reply:
        now, running = anyio.current_time(), self._execs.running()
        return json_reply(
            {
                "protocol": PROTOCOLS[-1],
                "protocols": PROTOCOLS,
                "version": "fake",
                "boot_id": self.boot_id,
                "lease_id": self.lease_id,
                "ready": self._ready,
                "life_left_s": None if self._dies_at is None else self._dies_at - now,
                "uptime_s": now - self._began,
                "execs_running": len(running),
                "idle_s": 0.0 if running else now - self._execs.last_end,
                "shell": "/bin/bash",
                "limits": {"readings": "none"},
            }
        )

    async def _begin_setup(self, request: Request) -> Reply:
        if self._ready or self.lease_id:
            raise Refusal("conflict", "the box is ready or claimed")
        self._surroundings.set_up(await request.json())
        self._setting_up = True
        return json_reply({})

    async def _end_setup(self, request: Request) -> Reply:
        if self.lease_id or self._execs.running():
            raise Refusal("conflict", "the box is claimed, or a command of the set-up still runs")
        self._execs.forget_all()
        self._surroundings.end_setup()
        self._setting_up, self._ready = False, True
        return json_reply({})

    async def _claim(self, request: Request) -> Reply:
        order = await request.json()
        lease_id = order.get("lease_id")
        if not isinstance(lease_id, str) or not is_caller_id(lease_id):
            raise Refusal("bad_request", "`lease_id` is missing")
        if self._setting_up:
            raise Refusal("conflict", "the box is still being set up")
        if self.lease_id not in {"", lease_id}:
            raise Refusal("conflict", "the box belongs to another lease")
        if not self.lease_id:
            self._surroundings.claim(order)
            self.lease_id = lease_id
            self._execs.last_end = anyio.current_time()
            self._give_life(order.get("life_s"))
        return json_reply({"boot_id": self.boot_id})

    async def _renew(self, request: Request) -> Reply:
        self._give_life((await request.json()).get("life_s"))
        return json_reply({})

    async def _kill(self, request: Request) -> Reply:
        return json_reply({"killed": self._execs.kill_all() + self._shells.close_all()})

    async def _readings(self, request: Request) -> Reply:
        names = ("cpu_s", "memory_bytes", "memory_peak_bytes", "memory_limit_bytes", "pids")
        said: dict[str, Any] = dict.fromkeys([*names, "oom_kills", "load_1m"])
        return json_reply({**said, "disk_free_bytes": self._files.free_bytes})

    async def _run(self, request: Request) -> Reply:
        order = await request.json()
        _check_ids(order)
        command = self._execs.known(order["exec_id"], order["fingerprint"])
        if command is None:
            check_command(order)

            async def main(started: Exec) -> int:
                return await self._surroundings.main(started, order)

            command = self._execs.start(order, main)
        return await self._told(command, order)

    async def _run_in_shell(self, request: Request) -> Reply:
        order = await request.json()
        _check_ids(order)
        if "\0" in str(order.get("text", "")):
            raise Refusal("bad_request", "`text` holds a NUL")
        return await self._told(self._shells.run(request.parts[1], order), order)

    async def _told(self, command: Exec, order: Mapping[str, Any]) -> Reply:
        """A command at its end if the order waits, else once it was started or could not be."""
        if order.get("wait", True):
            await command.ended.wait()
            return self._record(command, status=200)
        await command.settled.wait()
        return self._record(command, status=202)

    async def _list(self, request: Request) -> Reply:
        now = anyio.current_time()
        records = [command.record(now=now, output=False) for command in self._execs]
        return json_reply({"execs": records})

    async def _look(self, request: Request) -> Reply:
        command = self._execs.get(request.parts[1])
        with anyio.move_on_after(request.number("wait_s", 0)):
            await command.ended.wait()
        return self._record(command, output=request.query.get("output", "1") != "0")

    async def _output(self, request: Request) -> Reply:
        command = self._execs.get(request.parts[1])
        journal, stream = command.journal, request.query.get("stream", "stdout")
        if stream not in journal.kept:
            raise Refusal("bad_request", f"there is no stream {stream}")
        offset = int(request.number("offset", 0))
        limit = min(int(request.number("limit", _MAX_READ_BYTES)), _MAX_READ_BYTES)
        with anyio.move_on_after(request.number("wait_s", 0)):
            while journal.kept[stream].total <= offset and not journal.finished:
                await journal.changed()
        data = journal.read(stream, offset, limit)
        at_end = journal.finished and offset + len(data) >= journal.kept[stream].total
        headers = [("x-next-offset", str(offset + len(data))), ("x-ended", str(int(at_end)))]
        return Reply(200, data, headers)

    async def _stdin(self, request: Request) -> Reply:
        command = self._execs.get(request.parts[1])
        if command.stdin is None:
            raise Refusal("gone", "its input is not open")
        offset = int(request.number("offset", 0)) if "offset" in request.query else None
        eof = request.query.get("eof") == "1"
        return json_reply(
            {"offset": await command.stdin.feed(request.body, offset=offset, eof=eof)}
        )

    async def _signal(self, request: Request) -> Reply:
        command = self._execs.get(request.parts[1])
        name = check_signal((await request.json()).get("signal"))
        delivered = deliver(command, name)
        state = "running" if command.outcome is None else "ended"
        return json_reply({"delivered": delivered, "state": state})

    async def _attach(self, request: Request) -> Reply:
        command, query = self._execs.get(request.parts[1]), request.query
        _check_upgrade(request, "sandbox-frames")
        offsets = None
        if "stdout" in query or "stderr" in query:
            offsets = {name: int(request.number(name, 0)) for name in ("stdout", "stderr")}
        after = int(request.number("after", 0)) if "after" in query else None
        attached = Attached(command, after=after, offsets=offsets)
        return Reply(101, headers=[("upgrade", "sandbox-frames")], upgraded=attached.serve)

    async def _resize(self, request: Request) -> Reply:
        size = read_size(await request.json())
        command = self._execs.get(request.parts[1])
        if command.outcome is not None:
            raise Refusal("gone", "the command ended")
        if not isinstance(command.stdin, Terminal):
            raise Refusal("conflict", "the command has no terminal")
        command.stdin.size = size
        return json_reply({})

    async def _open_port(self, request: Request) -> Reply:
        _check_upgrade(request, "sandbox-bytes")
        if not request.parts[1].isdecimal() or not 1 <= int(request.parts[1]) <= 65535:
            raise Refusal("bad_request", "a port is a number from 1 to 65535")
        return _bytes_reply(self._loopback.connect(int(request.parts[1])))

    async def _set_listeners(self, request: Request) -> Reply:
        said = (await request.json()).get("listeners")
        return json_reply({"listeners": self._listeners.set(said)})

    async def _accept(self, request: Request) -> Reply:
        _check_upgrade(request, "sandbox-bytes")
        name, inside = await self._listeners.take()
        return _bytes_reply(
            inside, ("x-listener", name), lost=lambda: self._listeners.offer(name, inside)
        )

    async def _open_shell(self, request: Request) -> Reply:
        order = await request.json()
        if not is_caller_id(str(order.get("shell_id"))):
            raise Refusal("bad_request", "`shell_id` is missing")
        return json_reply(self._shells.open(order).said())

    async def _list_shells(self, request: Request) -> Reply:
        return json_reply({"shells": self._shells.listed()})

    async def _look_shell(self, request: Request) -> Reply:
        return json_reply(self._shells.get(request.parts[1]).said())

    async def _close_shell(self, request: Request) -> Reply:
        self._shells.close(request.parts[1])
        return json_reply(self._shells.get(request.parts[1]).said())

    def _record(self, command: Exec, *, status: int = 200, output: bool = True) -> Reply:
        said = command.record(now=anyio.current_time(), output=output)
        return json_reply(said, status=status)

    _CALLS: ClassVar[dict[tuple[str, ...], Call]] = {
        ("GET", "hello"): _hello,
        ("POST", "setup"): _begin_setup,
        ("POST", "ready"): _end_setup,
        ("POST", "claim"): _claim,
        ("POST", "renew"): _renew,
        ("POST", "kill"): _kill,
        ("GET", "readings"): _readings,
        ("POST", "execs"): _run,
        ("GET", "execs"): _list,
        ("GET", "execs", "*"): _look,
        ("GET", "execs", "*", "output"): _output,
        ("POST", "execs", "*", "stdin"): _stdin,
        ("POST", "execs", "*", "signal"): _signal,
        ("GET", "execs", "*", "attach"): _attach,
        ("POST", "execs", "*", "resize"): _resize,
        ("GET", "ports", "*"): _open_port,
        ("PUT", "listeners"): _set_listeners,
        ("GET", "accept"): _accept,
        ("POST", "shells"): _open_shell,
        ("GET", "shells"): _list_shells,
        ("GET", "shells", "*"): _look_shell,
        ("DELETE", "shells", "*"): _close_shell,
        ("POST", "shells", "*", "run"): _run_in_shell,
    }


Call = Callable[[FakeGuest, Request], Awaitable[Reply]]


def _check_upgrade(request: Request, name: str) -> None:
    if request.headers.get("upgrade") != name:
        raise Refusal("bad_request", f"`Upgrade: {name}` is missing")


def _bytes_reply(
    inside: ByteStream, *headers: tuple[str, str], lost: Callable[[], None] = lambda: None
) -> Reply:
    async def upgraded(outside: ByteStream, early: bytes) -> None:
        await inside.send(early)
        await join_streams(outside, inside)

    return Reply(
        101, headers=[("upgrade", "sandbox-bytes"), *headers], upgraded=upgraded, lost=lost
    )


def _check_ids(order: Mapping[str, Any]) -> None:
    for name in ("exec_id", "fingerprint"):
        if not is_caller_id(str(order.get(name))):
            raise Refusal("bad_request", f"`{name}` is missing or not an id")
