"""What every program of a box finds around it: files, base environment, the claim's defaults."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from sandboxd.backends.fake.guest.execs import Exec, JournalSink
from sandboxd.backends.fake.guest.process import Process, Program, Sink
from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.guest.starting import CannotStart, find
from sandboxd.backends.fake.guest.tree import Directory, FileTree, absolute
from sandboxd.backends.fake.terminal import Terminal, read_size

# Directories of a tree in memory, not of this machine.
_FOUND = ("bin", "etc", "home", "root", "tmp", "usr/bin", "var/tmp", "workspace")
_USERS = {"", "root", "0"}


class Surroundings:
    """Everybody is root here: another user is refused, as where there is no right to change it."""

    def __init__(self, files: FileTree, programs: Mapping[str, Program]) -> None:
        self.files = files
        self.programs = programs
        self.env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/root",
            "USER": "root",
            "LOGNAME": "root",
            "LANG": "C.UTF-8",
        }
        for path in _FOUND:
            files.make_directory(path.encode(), parents=True)
        files.write(b"/etc/hostname", b"fake\n")
        self._next_pid = 2
        self._before_setup: tuple[dict[str, str], bytes] | None = None

    def set_up(self, order: Mapping[str, Any]) -> None:
        """What commands run with until `end_setup`."""
        self._before_setup = self._before_setup or (dict(self.env), self.files.workdir)
        self.claim({**order, "files": ()})

    def end_setup(self) -> None:
        """As it was before; files stay."""
        if self._before_setup is not None:
            self.env, self.files.workdir = self._before_setup

    def claim(self, order: Mapping[str, Any]) -> None:
        """Late binding."""
        check_user(order.get("user", ""))
        self.env |= check_env(order.get("env", {}))
        if workdir := order.get("workdir", ""):
            self.files.make_directory(workdir.encode(), parents=True)
            self.files.workdir = absolute(workdir.encode(), b"/")
        for file in order.get("files", ()):
            path = absolute(file["path"].encode(), self.files.workdir)
            self.files.make_directory(path.rpartition(b"/")[0] or b"/", parents=True)
            self.files.write(path, base64.b64decode(file["data_b64"]), mode=file.get("mode"))

    def process(self, command: Exec, order: Mapping[str, Any]) -> Process:
        """A process as an order wants it. Raises CannotStart."""
        cwd = self._cwd(order.get("cwd", ""))
        if order.get("user", "") not in _USERS:
            raise CannotStart("bad_user", f"there is no user {order['user']} here")
        self._next_pid += 1
        stdin = command.source(order)
        stdout: Sink = JournalSink(command.journal, "stdout")
        stderr: Sink = JournalSink(command.journal, "stderr")
        env = {**self.env, "PWD": cwd}
        if isinstance(stdin, Terminal):
            stdout = stderr = stdin
            env.setdefault("TERM", "xterm-256color")
        return Process(
            argv=tuple(order.get("argv", ())),
            env={**env, **order.get("env", {})},
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            files=self.files,
            family=command,
            pid=self._next_pid,
            programs=self.programs,
        )

    async def main(self, command: Exec, order: Mapping[str, Any]) -> int:
        """Run an order's program to its end. Raises CannotStart and Died."""
        process = self.process(command, order)
        program = find(process)
        command.settled.set()
        return await program(process)

    def _cwd(self, given: str) -> str:
        path = absolute(given.encode(), self.files.workdir)
        try:
            if isinstance(self.files.node(path), Directory):
                return path.decode()
        except Refusal:
            pass
        raise CannotStart(
            "bad_cwd",
            f"{path.decode()} is no directory",
            from_inside=not (given.startswith("/") or self._has_workdir()),
        )

    def _has_workdir(self) -> bool:
        try:
            return isinstance(self.files.node(self.files.workdir), Directory)
        except Refusal:
            return False


def check_user(user: object) -> None:
    """Raises Refusal for anybody but root."""
    if user not in _USERS:
        raise Refusal("bad_request", f"there is no user {user} here")


def check_env(env: Any) -> dict[str, str]:
    """Variables. Raises Refusal for what no environment can hold."""
    if not isinstance(env, dict):
        raise Refusal("bad_request", "`env` is not an object")
    for name, value in env.items():
        if not name or "=" in name or not isinstance(value, str) or "\0" in name + value:
            raise Refusal("bad_request", f"a variable cannot be called or hold that: {name!r}")
    return env


def check_command(order: Mapping[str, Any]) -> None:
    """Raises Refusal for an order that no process can be made of."""
    argv = order.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(a, str) for a in argv):
        raise Refusal("bad_request", "`argv` is not a list of strings")
    if not argv[0] or any("\0" in text for text in [*argv, order.get("cwd", "")]):
        raise Refusal("bad_request", "`argv` or `cwd` holds a NUL, or names nothing")
    if order.get("tty") is not None:
        read_size(order["tty"])
    check_env(order.get("env", {}))
