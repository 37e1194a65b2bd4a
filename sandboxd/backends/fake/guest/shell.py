"""Runs the fake's small shell language: one interpreter is one shell with its variables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import anyio

from sandboxd.backends.fake.guest.process import (
    Bytes,
    Captured,
    Died,
    FileSink,
    Nothing,
    Pipe,
    Process,
    Sink,
    Source,
)
from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.guest.script import (
    Job,
    Part,
    Pipeline,
    Redirection,
    Script,
    ScriptError,
    Simple,
    Subshell,
    Word,
    parse,
)
from sandboxd.backends.fake.guest.starting import CannotStart, start
from sandboxd.backends.fake.guest.tree import Directory

_PIPED = 2


class Exit(Exception):
    """`exit`, or a failure under `set -e`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class Streams:
    """Where a command reads and writes."""

    stdin: Source
    stdout: Sink
    stderr: Sink


@dataclass(slots=True)
class Shell:
    """Variables, directory and status of one shell; `process` gives files, pid and family."""

    process: Process
    status: int = 0
    exit_on_error: bool = False
    children: list[anyio.Event] = field(default_factory=list)

    async def run(self, text: str, streams: Streams) -> int:
        """Run text; returns the status of its last command. Raises Exit and Died."""
        try:
            script = parse(text)
        except ScriptError as error:
            await streams.stderr.write(f"sh: {error}\n".encode())
            self.status = 2
            return 2
        return await self._script(script, streams)

    async def run_script(self, script: Script, streams: Streams) -> int:
        """Run what `( … )` holds, `exit` in it ends it alone."""
        try:
            return await self._script(script, streams)
        except Exit as end:
            return end.code

    async def _script(self, script: Script, streams: Streams) -> int:
        for job in script.jobs:
            if job.background:
                self._spawn(job, streams)
                self.status = 0
            else:
                await self._job(job, streams)
        return self.status

    def _spawn(self, job: Job, streams: Streams) -> None:
        ended = anyio.Event()
        self.children.append(ended)
        child = self.copy()

        async def run() -> None:
            try:
                await child.run_alone(job, Streams(Nothing(), streams.stdout, streams.stderr))
            finally:
                ended.set()

        self.process.family.spawn(run)

    async def _job(self, job: Job, streams: Streams) -> None:
        for position, pipeline in enumerate(job.pipelines):
            if pipeline.when and (pipeline.when == "&&") is not (self.status == 0):
                continue
            self.status = await self._pipeline(pipeline, streams)
            last = position == len(job.pipelines) - 1
            if self.exit_on_error and self.status and last and not pipeline.negated:
                raise Exit(self.status)

    async def _pipeline(self, pipeline: Pipeline, streams: Streams) -> int:
        if len(pipeline.commands) < _PIPED:
            status = await self._command(pipeline.commands[0], streams)
        else:
            status = await self._joined(pipeline.commands, streams)
        return int(not status) if pipeline.negated else status

    async def _joined(self, commands: tuple[Simple | Subshell, ...], streams: Streams) -> int:
        pipes = [Pipe() for _ in commands[1:]]
        sources: list[Source] = [streams.stdin, *pipes]
        sinks: list[Sink] = [*pipes, streams.stdout]
        statuses = [0] * len(commands)

        async def run(place: int) -> None:
            own = Streams(sources[place], sinks[place], streams.stderr)
            try:
                statuses[place] = await self.copy().run_alone(commands[place], own)
            finally:
                for pipe in pipes[place - 1 : place] if place else []:
                    pipe.close_read()
                for pipe in pipes[place : place + 1]:
                    pipe.close_write()

        async with anyio.create_task_group() as group:
            for place in range(len(commands)):
                group.start_soon(run, place, name="fake pipe")
        return statuses[-1]

    async def run_alone(self, command: Simple | Subshell | Job, streams: Streams) -> int:
        """Run a command to its status, whatever ends it."""
        try:
            if isinstance(command, Job):
                await self._job(command, streams)
                return self.status
            return await self._command(command, streams)
        except Exit as end:
            return end.code
        except Died as death:
            return 128 + SIGNALS.get(death.signal, 0)

    async def _command(self, command: Simple | Subshell, streams: Streams) -> int:
        try:
            streams = await self._redirected(command.redirections, streams)
        except Refusal as refusal:
            await streams.stderr.write(f"sh: {refusal.detail}\n".encode())
            return 1
        if isinstance(command, Subshell):
            return await self.copy().run_script(command.body, streams)
        words = [text for word in command.words for text in await self._expand(word, streams)]
        given: dict[str, str] = {}
        while words and _is_assignment(command.words[len(given)], words[0]):
            name, _, value = words.pop(0).partition("=")
            given[name] = value
        if not words:
            self.process.env.update(given)
            return 0
        return await self._simple(words, given, streams)

    async def _simple(self, words: list[str], given: dict[str, str], streams: Streams) -> int:
        builtin = _BUILTINS.get(words[0])
        if builtin is not None:
            return await builtin(self, words, streams)
        process = replace(
            self.process,
            argv=tuple(words),
            env={**self.process.env, **given},
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
        )
        try:
            return await start(process)
        except CannotStart as failure:
            await streams.stderr.write(f"sh: {failure.detail}\n".encode())
            return 127 if failure.reason == "not_found" else 126
        except Died as death:
            return 128 + SIGNALS.get(death.signal, 0)

    async def _redirected(self, redirections: tuple[Redirection, ...], streams: Streams) -> Streams:
        own = replace(streams)
        for redirection in redirections:
            if redirection.operator == "2>&1":
                own.stderr = own.stdout
            elif redirection.operator in {">&2", "1>&2"}:
                own.stdout = own.stderr
            else:
                [name] = await self._expand(redirection.target, streams) or [""]
                self._open(redirection.operator, name, own)
        return own

    def _open(self, operator: str, name: str, own: Streams) -> None:
        path, files = self.process.path(name), self.process.files
        if operator == "<":
            own.stdin = Nothing() if path == b"/dev/null" else Bytes(files.file(path).data)
            return
        sink: Sink = Nothing()
        if path != b"/dev/null":
            if not operator.endswith(">>") or files.find(path).node is None:
                files.write(path, b"")
            sink = FileSink(files, path)
        if operator.startswith("2"):
            own.stderr = sink
        else:
            own.stdout = sink

    async def _expand(self, word: Word, streams: Streams) -> list[str]:
        """The words that a word becomes: what is not quoted is cut at white space."""
        found, whole = [""], False
        for part in word:
            text = await self._value(part, streams)
            whole = whole or part.quoted or part.kind == "text"
            if part.quoted or part.kind == "text":
                found[-1] += text
            else:
                first, *more = text.split() or [""]
                found[-1] += first
                found += more
        return found if whole or found != [""] else []

    async def _value(self, part: Part, streams: Streams) -> str:
        if part.kind == "text":
            return part.value
        if part.kind == "name":
            known = {"?": str(self.status), "$": str(self.process.pid)}
            return known.get(part.value) or self.process.env.get(part.value, "")
        captured = Captured()
        inner = self.copy()
        try:
            self.status = await inner.run(part.value, replace(streams, stdout=captured))
        except Exit as end:
            self.status = end.code
        return captured.data.decode("utf-8", "surrogateescape").rstrip("\n")

    def copy(self) -> Shell:
        """A shell of its own with the same variables, as a fork has them."""
        return Shell(replace(self.process, env=dict(self.process.env)), status=self.status)


def _is_assignment(word: Word, text: str) -> bool:
    name = text.partition("=")[0]
    plain = "".join(part.value for part in word if part.kind == "text" and not part.quoted)
    return name.isidentifier() and plain.startswith(name + "=")


async def _cd(shell: Shell, words: list[str], streams: Streams) -> int:
    path = shell.process.path(words[1] if len(words) > 1 else "/root")
    try:
        if not isinstance(shell.process.files.node(path), Directory):
            raise Refusal("file_not_directory", f"{words[1]} is no directory")
    except Refusal as refusal:
        await streams.stderr.write(f"sh: cd: {refusal.detail}\n".encode())
        return 1
    shell.process.cwd = shell.process.env["PWD"] = path.decode("utf-8", "surrogateescape")
    return 0


async def _exit(shell: Shell, words: list[str], streams: Streams) -> int:
    raise Exit(int(words[1]) & 255 if len(words) > 1 else shell.status)


async def _export(shell: Shell, words: list[str], streams: Streams) -> int:
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if equals:
            shell.process.env[name] = value
    return 0


async def _unset(shell: Shell, words: list[str], streams: Streams) -> int:
    for name in words[1:]:
        shell.process.env.pop(name, None)
    return 0


async def _set(shell: Shell, words: list[str], streams: Streams) -> int:
    shell.exit_on_error = words[1:2] == ["-e"] or (shell.exit_on_error and words[1:2] != ["+e"])
    return 0


async def _wait(shell: Shell, words: list[str], streams: Streams) -> int:
    for child in shell.children:
        await child.wait()
    return 0


async def _kill(shell: Shell, words: list[str], streams: Streams) -> int:
    name, pids = "TERM", words[1:]
    if pids and pids[0].startswith("-"):
        name = pids.pop(0)[1:].removeprefix("SIG")
    name = _NUMBERS.get(name, name)
    if pids == [str(shell.process.pid)] and name in SIGNALS:
        raise Died(name)
    await streams.stderr.write(b"sh: kill: no such process\n")
    return 1


SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10,
    "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
}  # fmt: skip
_NUMBERS = {str(number): name for name, number in SIGNALS.items()}
_BUILTINS = {
    "cd": _cd,
    "exit": _exit,
    "export": _export,
    "unset": _unset,
    "set": _set,
    "wait": _wait,
    "kill": _kill,
}


async def sh(process: Process) -> int:
    """The program `sh`: `-c TEXT`, a file, or text on stdin."""
    if process.argv[1:2] == ("-c",):
        text = process.argv[2] if len(process.argv) > 2 else ""
    elif len(process.argv) > 1:
        text = process.files.file(process.path(process.argv[1])).data.decode(errors="replace")
    else:
        text = (await process.read_all()).decode(errors="replace")
    shell = Shell(replace(process, env=dict(process.env)))
    try:
        return await shell.run(text, Streams(process.stdin, process.stdout, process.stderr))
    except Exit as end:
        return end.code
