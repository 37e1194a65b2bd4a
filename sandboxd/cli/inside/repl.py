"""`kernel`: cells typed in, or piped in, for a kernel in a sandbox; what they show comes back."""

from __future__ import annotations

import ast
import codeop
import getpass
import secrets
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import anyio

from sandboxd.cli.client import knock, sentence
from sandboxd.cli.faults import CliError, ExitCode, say
from sandboxd.cli.inside.completing import nothing_completed, offer_completion
from sandboxd.kernels.text import plain
from sandboxd_client import (
    Cell,
    CellEnded,
    CellEvent,
    CellGap,
    CellOutcome,
    CellOutput,
    CellText,
    CellUpdate,
    InputRequest,
    Kernel,
    KernelDied,
    LeaseEnded,
    Sandboxd,
    SandboxdError,
    SandboxLost,
)

_PATIENCE_S = 10.0
_LEAVE = {"exit", "quit", "exit()", "quit()"}  # what would end the kernel, and then nobody leaves
_BORDER = "# %%"  # the line that begins another cell, as editors have it


def kernel(args: Namespace) -> int:
    """Read cells until the input ends. From a pipe: 1 if a cell failed, which is the last then.

    A kernel that was started here is ended here; one that was attached to lives on.
    """
    anyio.run(knock)
    with Sandboxd(patience_s=_PATIENCE_S) as client:
        sandbox = client.sandbox(args.id)
        if args.attach:
            held = sandbox.get_kernel(args.attach)
        else:
            held = sandbox.kernel(args.spec, env=dict(args.env), cwd=args.cwd)
        spec = held.info().spec
        try:
            if sys.stdin.isatty():
                return _Desk(held, spec=spec).sit()
            return _run_all(held, sys.stdin)
        finally:
            if not args.attach:
                with suppress(SandboxdError):  # it ends with the sandbox at the latest
                    held.shutdown()


# ---------------------------------------------------------------------------------- from a pipe


def _run_all(held: Kernel, lines: Iterable[str]) -> int:
    for code in cells_of(lines):
        cell = Showing(held, numbered=False).run(code)
        if not cell.ok:
            if cell.error is None:
                say(f"the cell ended with {cell.outcome}")
            return ExitCode.OURS if cell.mask else ExitCode.FAILED
    return ExitCode.OK


def cells_of(lines: Iterable[str]) -> Iterator[str]:
    """Cells, each as soon as it is whole: a line `# %%` begins another one. Empty ones are none."""
    code: list[str] = []
    for line in lines:
        if line.startswith(_BORDER):
            yield from _filled(code)
            code = []
        else:
            code.append(line)
    yield from _filled(code)


def _filled(code: list[str]) -> Iterator[str]:
    if any(line.strip() for line in code):
        yield "".join(code)


# ---------------------------------------------------------------------------------- by a person


class _Desk:
    """Somebody at a terminal."""

    def __init__(self, held: Kernel, *, spec: str) -> None:
        self._kernel = held
        self._speaks_python = spec.startswith("python")
        self._lines: list[str] = []  # of the cell that is being typed
        self._count = held.info().execution_count

    def sit(self) -> int:
        """Until Ctrl-D, or `exit`. Ctrl-C drops what was typed, or interrupts the cell that runs.

        Raises what ended the sandbox; after every other error somebody types on.
        """
        offer_completion(self._kernel, self._lines)
        say("Ctrl-C interrupts a cell, Ctrl-D leaves")
        while True:
            try:
                self._lines.append(input(self._prompt()))
            except EOFError:
                print()
                return ExitCode.OK
            except KeyboardInterrupt:
                print()
                self._lines.clear()
                continue
            code = "\n".join(self._lines)
            if code.strip() in _LEAVE and self._speaks_python:
                return ExitCode.OK
            if is_complete(code, python=self._speaks_python):
                self._lines.clear()
                self._run(code)

    def _run(self, code: str) -> None:
        try:
            if code.strip():
                self._show(Showing(self._kernel, numbered=True).run(code))
        except (LeaseEnded, SandboxLost):
            raise
        except SandboxdError as error:
            say(sentence(error))
            if isinstance(error, KernelDied):
                self._start_anew()

    def _show(self, cell: Cell) -> None:
        self._count = cell.execution_count or self._count
        if not cell.ok and cell.error is None:
            say(f"the cell ended with {cell.outcome}")
        if cell.outcome is CellOutcome.DIED:
            self._start_anew()
        elif cell.kernel_restarted:
            self._forget()

    def _start_anew(self) -> None:
        self._kernel.restart()
        self._forget()

    def _forget(self) -> None:
        say("the kernel was started anew: its variables are gone")
        self._count = 0

    def _prompt(self) -> str:
        head = f"In [{self._count + 1}]: "
        return head if not self._lines else "...: ".rjust(len(head))


_COMPILE = codeop.CommandCompiler()
_COMPILE.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in every cell of IPython's


def is_complete(code: str, *, python: bool) -> bool:
    """Whether nothing more is to come. An empty line ends everything but an open bracket or quote.

    What is no Python (`!ls`, `%time`) is one line, and goes to the kernel; so is what never will be
    Python, to hear why.
    """
    if not code.strip() or not python or code.lstrip().startswith("%%"):
        return not code.strip() or code.endswith("\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel will say it
        try:
            return _COMPILE(code, symbol="single") is not None
        except (SyntaxError, ValueError, OverflowError):
            return True


# ---------------------------------------------------------------------------------- a cell


class Showing:
    """A cell that runs, and shows here what it shows. Ctrl-C interrupts it, again and again."""

    def __init__(self, held: Kernel, *, numbered: bool) -> None:
        self._kernel = held
        self._numbered = numbered  # values as a person at a notebook sees them: Out[3]: …
        self._cell_id = f"cell-{secrets.token_hex(16)}"
        self._after = 0
        self._begun_line = False  # something was printed that did not end its line

    def run(self, code: str) -> Cell:
        """To its end. Raises typed errors where the sandbox failed."""
        events = self._kernel.stream(code, cell_id=self._cell_id, allow_stdin=self._numbered)
        while True:
            try:
                with closing(events):
                    return self._show(events)
            except KeyboardInterrupt:
                with suppress(KernelDied):  # then the cell has an end, and tells it
                    self._kernel.interrupt()
                events = self._kernel.attach(self._cell_id, after=self._after)

    def _show(self, events: Iterable[CellEvent]) -> Cell:
        for event in events:
            self._after = event.seq or self._after
            match event:
                case CellText(stream=stream, text=text):
                    out = sys.stderr if stream == "stderr" else sys.stdout
                    print(_coloured(text), end="", file=out, flush=True)
                    self._begun_line = not text.endswith("\n")
                case CellOutput(output=output):
                    self._print(words_of(output, numbered=self._numbered))
                case CellUpdate(data=data):
                    self._print(str(data.get("text/plain", "")))
                case InputRequest(prompt=prompt, password=password):
                    self._answer(prompt, password=password)
                case CellGap(missing=missing):
                    say(f"{missing} messages were not kept and are missing here")
                case CellEnded(cell=cell):
                    self._print("")
                    return cell
                case _:
                    pass
        raise CliError("the stream of events ended without the cell's end", code=ExitCode.OURS)

    def _print(self, words: str) -> None:
        """On lines of its own."""
        if self._begun_line:
            print()
            self._begun_line = False
        if words:
            print(_coloured(words), flush=True)

    def _answer(self, prompt: str, *, password: bool) -> None:
        try:
            with nothing_completed():
                line = getpass.getpass(prompt) if password else input(prompt)
            self._kernel.input(line)
        except EOFError:
            self._kernel.interrupt()


def words_of(output: Mapping[str, Any], *, numbered: bool) -> str:
    """A display, a value or an error in words, or the names of its media types."""
    if output["output_type"] == "error":
        return "\n".join(output["traceback"])
    words: str | None = output["data"].get("text/plain")
    if words is None:
        return f"[{', '.join(sorted(output['data']))}]"
    if not numbered or output["output_type"] != "execute_result":
        return words
    head = f"Out[{output['execution_count']}]: "
    return head + ("\n" if "\n" in words else "") + words


def _coloured(words: str) -> str:
    return words if sys.stdout.isatty() else plain(words)
