"""The programs of a fake sandbox: small, deterministic stand-ins for the usual ones."""

from __future__ import annotations

import codecs
import hashlib

import anyio
import anyio.lowlevel

from sandboxd.backends.fake.guest.process import Process, Program
from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.guest.shell import sh
from sandboxd.backends.fake.guest.starting import CannotStart, start
from sandboxd.backends.fake.guest.tree import File
from sandboxd.backends.fake.terminal import Terminal

_BLOCK = 65536


async def true(process: Process) -> int:
    """Nothing, well."""
    await anyio.lowlevel.checkpoint()
    return 0


async def false(process: Process) -> int:
    """Nothing, badly."""
    await anyio.lowlevel.checkpoint()
    return 1


async def echo(process: Process) -> int:
    """The arguments; `-n` without the line's end."""
    words, end = process.argv[1:], "\n"
    if words[:1] == ("-n",):
        words, end = words[1:], ""
    await process.out((" ".join(words) + end).encode("utf-8", "surrogateescape"))
    return 0


async def printf(process: Process) -> int:
    """A format with `%s`, `%d`, `%%` and backslash escapes."""
    form, *values = process.argv[1:] or ("",)
    text = codecs.escape_decode(form.encode())[0]
    for value in values:
        text = text.replace(b"%s", value.encode(), 1).replace(b"%d", value.encode(), 1)
    await process.out(text.replace(b"%%", b"%"))
    return 0


async def cat(process: Process) -> int:
    """Files, or stdin."""
    status = 0
    for name in process.argv[1:] or ("-",):
        if name == "-":
            while piece := await process.stdin.read(_BLOCK):
                await process.out(piece)
            continue
        try:
            await process.out(process.files.file(process.path(name)).data)
        except Refusal as refusal:
            await process.err(f"cat: {refusal.detail}\n")
            status = 1
    return status


async def sleep(process: Process) -> int:
    """Seconds of the loop's clock, virtual where that is."""
    await anyio.sleep(float(process.argv[1]))
    return 0


async def env(process: Process) -> int:
    """The variables, or `env [-i] NAME=VALUE… COMMAND`."""
    words = list(process.argv[1:])
    if words[:1] == ["-i"]:
        words.pop(0)
        process.env.clear()
    while words and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        process.env[name] = value
    if words:
        process.argv = tuple(words)
        try:
            return await start(process)
        except CannotStart as failure:
            await process.err(f"env: {failure.detail}\n")
            return 127
    await process.out("".join(f"{k}={v}\n" for k, v in sorted(process.env.items())))
    return 0


async def printenv(process: Process) -> int:
    """One variable, or all."""
    if len(process.argv) == 1:
        return await env(process)
    value = process.env.get(process.argv[1])
    if value is None:
        return 1
    await process.out((value + "\n").encode("utf-8", "surrogateescape"))
    return 0


async def pwd(process: Process) -> int:
    """The directory."""
    await process.out(process.cwd + "\n")
    return 0


async def stty(process: Process) -> int:
    """`stty size`: rows and columns of the terminal that it reads from."""
    if not isinstance(process.stdin, Terminal):
        await process.err("stty: 'standard input': Inappropriate ioctl for device\n")
        return 1
    await process.out("{} {}\n".format(*process.stdin.size))
    return 0


async def head(process: Process) -> int:
    """`head -c N [FILE]`, `/dev/zero` among the files."""
    count, name = int(process.argv[2]), process.argv[3] if len(process.argv) > 3 else "-"
    if name not in {"-", "/dev/zero"}:
        await process.out(process.files.file(process.path(name)).data[:count])
        return 0
    while count:
        wanted = min(count, _BLOCK)
        piece = await process.stdin.read(wanted) if name == "-" else bytes(wanted)
        if not piece:
            break
        await process.out(piece)
        count -= len(piece)
    return 0


async def seq(process: Process) -> int:
    """`seq [FIRST] LAST`."""
    numbers = [int(word) for word in process.argv[1:]]
    first, last = (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[-1])
    for start_at in range(first, last + 1, 1000):
        end = min(last, start_at + 999)
        await process.out("".join(f"{number}\n" for number in range(start_at, end + 1)))
    return 0


async def yes(process: Process) -> int:
    """`y`, until nobody reads it."""
    block = ("y\n" if len(process.argv) == 1 else process.argv[1] + "\n") * 4096
    while True:
        await process.out(block)


async def tee(process: Process) -> int:
    """Stdin to stdout and to files; `-a` appends."""
    names = [name for name in process.argv[1:] if name != "-a"]
    data = await process.read_all()
    for name in names:
        path = process.path(name)
        place = process.files.find(path)
        old = place.node.data if "-a" in process.argv and isinstance(place.node, File) else b""
        process.files.write(path, old + data)
    await process.out(data)
    return 0


async def sha256sum(process: Process) -> int:
    """Of stdin or of one file."""
    digest = hashlib.sha256()
    name = process.argv[1] if len(process.argv) > 1 else "-"
    if name != "-":
        digest.update(process.files.file(process.path(name)).data)
    else:
        while piece := await process.stdin.read(_BLOCK):
            digest.update(piece)
    await process.out(f"{digest.hexdigest()}  {name}\n")
    return 0


async def wc(process: Process) -> int:
    """`wc -c`: how many bytes stdin has."""
    count = 0
    while piece := await process.stdin.read(_BLOCK):
        count += len(piece)
    await process.out(f"{count}\n")
    return 0


async def ls(process: Process) -> int:
    """The names in a directory."""
    names = [word for word in process.argv[1:] if not word.startswith("-")] or ["."]
    for place in process.files.entries(process.path(names[0]), recursive=False):
        await process.out(place.name + b"\n")
    return 0


async def mkdir(process: Process) -> int:
    """Directories; `-p` with parents."""
    parents = "-p" in process.argv
    for name in process.argv[1:]:
        if name != "-p":
            process.files.make_directory(process.path(name), parents=parents)
    return 0


async def rm(process: Process) -> int:
    """Names; `-r` with all below, `-f` without complaint."""
    flags = "".join(word[1:] for word in process.argv[1:] if word.startswith("-"))
    for name in process.argv[1:]:
        if name.startswith("-"):
            continue
        try:
            process.files.remove(process.path(name), recursive="r" in flags)
        except Refusal:
            if "f" not in flags:
                raise
    return 0


async def ln(process: Process) -> int:
    """`ln -s TARGET NAME`."""
    process.files.link(process.path(process.argv[3]), process.argv[2].encode())
    return 0


async def chmod(process: Process) -> int:
    """`chmod OCTAL|+x FILE…`."""
    for name in process.argv[2:]:
        node = process.files.node(process.path(name))
        given = process.argv[1]
        node.mode = node.mode | 0o111 if given == "+x" else int(given, 8)
    return 0


async def test(process: Process) -> int:
    """`test -e|-f|-d|-n|-z WORD` and `test A = B`."""
    match process.argv[1:]:
        case ("-n", text):
            return int(not text)
        case ("-z", text):
            return int(bool(text))
        case (left, "=", right):
            return int(left != right)
        case (_, name):
            try:
                process.files.node(process.path(name))
            except Refusal:
                return 1
            return 0
        case _:
            return 2


def _complaining(name: str, program: Program) -> Program:
    """The program, whose refused file calls are told on stderr, as real ones do."""

    async def run(process: Process) -> int:
        try:
            return await program(process)
        except Refusal as refusal:
            await process.err(f"{name}: {refusal.detail}\n")
        except (IndexError, ValueError):
            await process.err(f"{name}: cannot be called like that here\n")
        return 1

    return run


_ALL = {
    ":": true, "true": true, "false": false, "echo": echo, "printf": printf, "cat": cat,
    "sleep": sleep, "env": env, "printenv": printenv, "pwd": pwd, "head": head, "seq": seq,
    "yes": yes, "tee": tee, "sha256sum": sha256sum, "wc": wc, "ls": ls, "mkdir": mkdir, "rm": rm,
    "ln": ln, "chmod": chmod, "test": test, "stty": stty, "sh": sh, "bash": sh,
}  # fmt: skip

PROGRAMS: dict[str, Program] = {name: _complaining(name, run) for name, run in _ALL.items()}
