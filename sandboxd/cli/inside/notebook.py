"""`notebook run`: a notebook's cells in a fresh sandbox, and a file with what they showed."""

from __future__ import annotations

import secrets
import signal
import sys
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import anyio

from sandboxd.cli.client import with_client
from sandboxd.cli.faults import CliError, ExitCode, say
from sandboxd.cli.inside.notebook_file import CodeCell, Notebook, read_notebook
from sandboxd_client import AsyncKernel, AsyncSandboxd, Cell, CellOutcome, Fault, SandboxdError

_GOODBYE_S = 5.0  # for what a cell has shown so far, once we are told to go
_WAIT_S = 60.0  # in the queue for a sandbox
_SHOWN_CHARS = 60  # of a cell's first line
_OURS = {Fault.INFRA, Fault.UNKNOWN}


def notebook(args: Namespace) -> int:
    """Run it. 0 if every cell was well, 1 if one was not, 125 if that cannot be told.

    What there is by then is written however it ends.
    """
    # Whoever ends us gets the same clean end as Ctrl-C: by the loop's own handler, which cancels.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    book = read_notebook(args.file)
    target = args.output or _beside(args.file)
    if target != "-" and not Path(target).parent.is_dir():
        raise CliError(f"there is no folder to write {target} to", code=ExitCode.USAGE)
    run = _Run(book, allow_errors=args.allow_errors, timeout_s=args.timeout)

    async def verb(client: AsyncSandboxd) -> int:
        await client.version()  # a person who waits for a wrong address need not
        async with client.lease(args.template, wait_timeout_s=_WAIT_S) as sandbox:
            await sandbox.renew()  # it may take as long as the template allows
            return await run.every_cell(await sandbox.kernel(args.spec or book.spec or "python3"))

    try:
        return with_client(verb)
    finally:
        run.progress.give_up()
        if run.began:
            book.write(target)
            say(f"written: {'standard output' if target == '-' else target}")


def _beside(path: str) -> str:
    """Where what `path` showed is written if nobody says."""
    return "-" if path == "-" else str(Path(path).with_suffix(".out.ipynb"))


class _Run:
    """One notebook, cell by cell. began: whether one was given to a kernel."""

    def __init__(self, book: Notebook, *, allow_errors: bool, timeout_s: float | None) -> None:
        self.began = False
        self.progress = _Progress()
        self._book = book
        self._allow_errors = allow_errors
        self._timeout_s = timeout_s

    async def every_cell(self, kernel: AsyncKernel) -> int:
        """Until the end, or the first cell that was not well; the exit code."""
        cells = self._book.to_run()
        self._book.clear()
        self.began = True
        for number, code_cell in enumerate(cells, 1):
            self.progress.begin(f"[{number}/{len(cells)}] {_short(code_cell.first_line)}")
            cell = await self._execute(kernel, code_cell)
            code_cell.take(cell)
            self.progress.end(_how(cell))
            if (code := self._exit_code(cell, code_cell)) is not None:
                say(f"cell {number} of {len(cells)}: {_why(cell)}")
                return code
        return ExitCode.OK

    async def _execute(self, kernel: AsyncKernel, code_cell: CodeCell) -> Cell:
        cell_id = f"cell-{secrets.token_hex(16)}"
        try:
            return await kernel.execute(code_cell.code, cell_id=cell_id, timeout_s=self._timeout_s)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_GOODBYE_S, shield=True), suppress(SandboxdError):
                code_cell.take(await kernel.cell(cell_id))
            raise

    def _exit_code(self, cell: Cell, code_cell: CodeCell) -> int | None:
        """None where the next cell may run."""
        if cell.mask or cell.fault in _OURS:
            return ExitCode.OURS
        if cell.ok or (cell.outcome is not CellOutcome.DIED and self._allow_errors):
            return None
        if cell.outcome is CellOutcome.ERROR and code_cell.may_raise:
            return None
        return ExitCode.FAILED


class _Progress:
    """A line of standard error for each cell; on a terminal it stands there while the cell runs."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._head = ""
        self._began_at = 0.0

    def begin(self, head: str) -> None:
        """A cell begins."""
        self._head, self._began_at = head, time.monotonic()
        if self._is_terminal:
            print(head, end="", file=sys.stderr, flush=True)

    def end(self, how: str) -> None:
        """It ended."""
        seconds = time.monotonic() - self._began_at
        head = "" if self._is_terminal else self._head
        print(f"{head} {seconds:.1f} s{how}", file=sys.stderr, flush=True)
        self._head = ""

    def give_up(self) -> None:
        """Nobody waits for what has begun any more."""
        if self._head:
            self.end(" (not ended)")


def _short(line: str) -> str:
    return line if len(line) <= _SHOWN_CHARS else line[: _SHOWN_CHARS - 1] + "…"


def _how(cell: Cell) -> str:
    words = [] if cell.ok else [str(cell.outcome)]
    words += ["truncated"] if cell.truncated else []
    words += ["kernel restarted"] if cell.kernel_restarted else []
    return f" ({', '.join(words)})" if words else ""


def _why(cell: Cell) -> str:
    if cell.outcome is CellOutcome.ERROR and cell.error is not None:
        return f"{cell.error.ename}: {cell.error.evalue}"
    return f"it ended with {cell.outcome}" + (f", fault {cell.fault}" if cell.fault else "")
