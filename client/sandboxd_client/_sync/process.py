# Generated from client/sandboxd_client/_async/process.py by scripts/unasync.py.
# Edit the source, then run the script.
"""A command as something to hold: its input, its events, its end; and the waiting of `exec`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

from sandboxd_client._core.calls import ROUND_S, Call, encode, path_of, silence_for
from sandboxd_client._core.fields import needed
from sandboxd_client._runtime import sio as runtime
from sandboxd_client._sync.api import Api
from sandboxd_client._sync.streaming import follow_events
from sandboxd_client._sync.terminal import Terminal
from sandboxd_client.errors import ApiUnreachable
from sandboxd_client.events import ExecEvent
from sandboxd_client.results import ExecResult

_STDIN_PIECE_BYTES = 1 << 20


class Process:
    """A command in a sandbox, by its id. Holds no connection; dropping it ends nothing.

    One writer at a time: `write` keeps count of the bytes that the command's input has taken.
    """

    def __init__(self, api: Api, *, sandbox_id: str, exec_id: str) -> None:
        self._api = api
        self._parts = ("sandboxes", sandbox_id, "execs", exec_id)
        self._stdin_offset: int | None = None  # None: ask first, another process may have written
        self.exec_id = exec_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.exec_id}>"

    def info(self, *, binary: bool = False) -> ExecResult:
        """How it stands now, with its output so far. binary: the exact bytes as well."""
        return self._get(wait_s=None, binary=binary)

    def wait(self, *, timeout_s: float | None = None, binary: bool = False) -> ExecResult:
        """Wait for its end, in rounds that no proxy cuts.

        timeout_s: give up waiting after that; the result then says `running`, the command runs on.
        binary: the exact bytes of the output as well. Cancelled: the command runs on.
        """
        deadline = None if timeout_s is None else runtime.now() + timeout_s
        while True:
            left = ROUND_S if deadline is None else max(0.0, deadline - runtime.now())
            result = self._get(wait_s=min(ROUND_S, left), binary=binary)
            if not result.running or (deadline is not None and runtime.now() >= deadline):
                return result

    def write(self, data: bytes | str) -> None:
        """Write to its standard input (`stdin_open=True` keeps it open); returns when all is taken.

        Waits as long as the command does not read. Raises Conflict (with status 410) once it has
        closed its input or ended.
        """
        view = memoryview(data.encode() if isinstance(data, str) else data)
        offset = self._offset()
        end = offset + len(view)
        start = offset
        while offset < end:
            piece = bytes(view[offset - start : offset - start + _STDIN_PIECE_BYTES])
            offset = self._stdin_offset = self._push(piece, offset=offset, eof=False)

    def close_stdin(self) -> None:
        """End of file on its standard input. Idempotent."""
        offset = self._offset()
        self._stdin_offset = self._push(b"", offset=offset, eof=True)

    def signal(self, name: str = "TERM") -> bool:
        """Send a signal (`"INT"`, `"KILL"`, …) to its process group. False if it had ended already.

        Not sent again if the answer is lost: that raises ApiUnreachable.
        """
        path = path_of(*self._parts, "signal")
        call = Call(method="POST", path=path, body=encode({"signal": name}), ends=True)
        told = self._api.json(call)
        return bool(told.get("delivered", True))

    def kill(self) -> bool:
        """Kill the whole tree of it. False if it had ended already."""
        return self.signal("KILL")

    def events(self, *, after: int = 0) -> Generator[ExecEvent, None, None]:
        """Its events after the number `after`, each once, until `Ended`; survives cut lines.

        To leave early, use `aclosing`.
        """
        return follow_events(
            self._api, first=None, events_path=path_of(*self._parts, "events"), after=after
        )

    def attach(self, *, stdout: int = 0, stderr: int = 0, shared: bool = False) -> Terminal:
        """Its output from these offsets on, live, and its input: `with` it.

        shared: others write to its input too.
        """
        return Terminal(self._api, self._parts, stdout=stdout, stderr=stderr, shared=shared)

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of its terminal. Raises Conflict where it has none, or has ended."""
        body = encode({"rows": rows, "cols": cols})
        path = path_of(*self._parts, "resize")
        self._api.json(Call(method="POST", path=path, body=body, safe=True))

    def output(
        self,
        stream: Literal["stdout", "stderr"] = "stdout",
        *,
        offset: int = 0,
        limit: int | None = None,
        wait_s: float | None = None,
    ) -> tuple[bytes, int]:
        """Kept bytes of one stream from `offset` on, and the offset to go on from.

        wait_s: wait that long for more at the end. Raises the typed error, whose `details["kept"]`
        tells what there is, for a range that was not kept.
        """
        query = {"stream": stream, "offset": offset, "limit": limit, "wait_s": wait_s}
        path = path_of(*self._parts, "output", query=query)
        silence_s = silence_for(wait_s)
        call = Call(method="GET", path=path, accept="*/*", safe=True, silence_s=silence_s)
        data, head = self._api.read(call)
        told = head.header(b"x-next-offset")
        return data, int(told) if told else offset + len(data)

    def _get(self, *, wait_s: float | None, binary: bool) -> ExecResult:
        query = {"wait_s": wait_s, "encoding": "base64" if binary else None}
        call = Call(method="GET", path=path_of(*self._parts, query=query), safe=True)
        return ExecResult.from_json(self._api.json(call))

    def _offset(self) -> int:
        if self._stdin_offset is None:
            self._stdin_offset = self._push(b"", offset=0, eof=False)
        return self._stdin_offset

    def _push(self, piece: bytes, *, offset: int, eof: bool) -> int:
        """Bytes at an offset: what was taken already is skipped, so this may be sent again."""
        path = path_of(*self._parts, "stdin", query={"offset": offset, "eof": eof})
        call = Call(
            method="POST", path=path, body=piece, content_type="application/octet-stream", safe=True
        )
        while True:
            try:
                return int(needed(self._api.json(call), "offset"))
            except ApiUnreachable as error:
                if error.status is not None:
                    raise
                # A command that reads nothing keeps the line silent. If the daemon answers
                # otherwise, that is all it was.
                self.info()


def run_to_end(
    api: Api, process: Process, *, path: str, body: dict[str, Any], binary: bool
) -> ExecResult:
    """Start a command (under its id) and wait for its end: one round trip if it is short.

    The daemon answers after a round of waiting at the latest, then rounds of waiting follow.
    """
    call = Call(method="POST", path=path, body=encode(body), safe=True)
    result = ExecResult.from_json(api.json(call))
    return result if not result.running else process.wait(binary=binary)
