"""`notebook run`: a notebook's cells in a fresh sandbox, and a file with what they showed."""

from __future__ import annotations

import signal
import sys
import time
from argparse import Namespace
from contextlib import aclosing

from sandboxd.cli.client import LASTING_S, with_client
from sandboxd.cli.faults import CliError, ExitCode, say
from sandboxd.cli.inside.notebook_file import (
    CodeCell,
    Notebook,
    check_target,
    read_notebook,
    target_beside,
)
from sandboxd.kernels.outputs import Outputs
from sandboxd_client import (
    AsyncKernel,
    AsyncSandbox,
    AsyncSandboxd,
    Cell,
    CellCleared,
    CellEnded,
    CellEvent,
    CellOutcome,
    CellOutput,
    CellText,
    CellUpdate,
    Fault,
    StartFailed,
)

_WAIT_S = 60.0  # in the queue for a sandbox
_SHOWN_CHARS = 60  # of a cell's first line
_OURS = {Fault.INFRA, Fault.UNKNOWN}


def notebook(args: Namespace) -> int:
    """Run it. 0 if every cell was well, 1 if one was not, 125 if that cannot be told.

    What there is by then is written however it ends.
    """
    _leave_cleanly()
    book = read_notebook(args.file)
    target = args.output or target_beside(args.file)
    check_target(target)
    run = _Run(book, allow_errors=args.allow_errors, timeout_s=args.timeout)

    async def verb(client: AsyncSandboxd) -> int:
        async with client.lease(args.template, wait_timeout_s=_WAIT_S) as sandbox:
            await sandbox.renew()  # it may take as long as the template allows
            return await run.every_cell(await _kernel_for(sandbox, book, asked=args.spec))

    try:
        return with_client(verb, patience_s=LASTING_S)
    finally:
        # Written before anything is said: nobody may listen any more.
        if run.began:
            _write(book, target)
        run.progress.give_up()
        if run.began:
            say(f"written: {'standard output' if target == '-' else target}")


def _leave_cleanly() -> None:
    """Whoever ends us gets the same clean end as Ctrl-C: by the loop's own handler, which cancels.

    A terminal that is closed is no end under `nohup`.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


async def _kernel_for(sandbox: AsyncSandbox, book: Notebook, *, asked: str | None) -> AsyncKernel:
    try:
        return await sandbox.kernel(asked or book.spec or "python3")
    except StartFailed as error:
        if asked or not book.spec:
            raise
        why = f"{error.detail}; the notebook names it, `--spec NAME` takes another"
        raise CliError(why, code=ExitCode.OURS) from error


def _write(book: Notebook, target: str) -> None:
    try:
        book.write(target)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CliError(f"{target} could not be written: {error.strerror}") from error


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
        """To its end. Without one, it showed what came by then."""
        shown = Outputs()
        try:
            async with aclosing(kernel.stream(code_cell.code, timeout_s=self._timeout_s)) as events:
                async for event in events:
                    if isinstance(event, CellEnded):
                        return event.cell
                    _hear(event, shown)
        except BaseException:
            code_cell.show(shown.listed())
            raise
        raise CliError("the stream of events ended without the cell's end", code=ExitCode.OURS)

    def _exit_code(self, cell: Cell, code_cell: CodeCell) -> int | None:
        """None where the next cell may run."""
        if cell.mask or cell.fault in _OURS:
            return ExitCode.OURS
        if cell.ok or (cell.outcome is not CellOutcome.DIED and self._allow_errors):
            return None
        if cell.outcome is CellOutcome.ERROR and code_cell.may_raise:
            return None
        return ExitCode.FAILED


def _hear(event: CellEvent, shown: Outputs) -> None:
    match event:
        case CellText(stream=stream, text=text):
            shown.stream(stream, text)
        case CellOutput(output=output):
            shown.show(dict(output), size=0)
        case CellUpdate(display_id=display_id, data=data, metadata=metadata):
            shown.update(display_id, data, metadata, size=0)
        case CellCleared(wait=wait):
            shown.clear(wait=wait)
        case _:
            pass


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
