"""The two-way stream to one command: its journal as frames, and frames into its input."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import ByteStream

from sandboxd.backends.fake.guest.execs import Exec, check_signal, deliver
from sandboxd.backends.fake.guest.journal import FIRST_SEQ, Piece, Reader
from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.terminal import Terminal, read_size
from sandboxd.wire.frames import FrameDecoder, FrameError, FrameKind, encode, encode_piece

_KINDS = {"stdout": FrameKind.STDOUT, "stderr": FrameKind.STDERR}
_READ_BYTES = 65536


class Attached:
    """One reader of one command.

    after: the last piece it has seen. offsets: where it stands in each stream.
    """

    def __init__(
        self, command: Exec, *, after: int | None = None, offsets: dict[str, int] | None = None
    ) -> None:
        self._command = command
        self._journal = command.journal
        self._announce = (after or 0) < 1
        seen = max(after or 0, FIRST_SEQ - 1)
        self._reader = Reader(seen + 1)
        self._offsets = self._journal.offsets_after(seen) if offsets is None else dict(offsets)

    async def serve(self, stream: ByteStream, early: bytes) -> None:
        """Until the command ended, the reader left, or was too slow."""
        self._journal.readers.append(self._reader)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, stream, early, group.cancel_scope, name="stdin")
                with suppress(anyio.BrokenResourceError):  # the reader left
                    await self._tell(stream)
                group.cancel_scope.cancel()
        finally:
            if self._reader in self._journal.readers:
                self._journal.readers.remove(self._reader)
            self._journal.notify()

    async def _tell(self, stream: ByteStream) -> None:
        if self._announce:
            started = {"seq": 1, "started_at": self._command.started_at}
            await stream.send(_control({"started": started}))
        while True:
            pieces = self._journal.pieces_from(self._reader.seq)
            for piece in pieces:
                await self._send_piece(stream, piece)
                self._reader.seq = piece.seq + 1
                self._journal.notify()
            if self._reader.dropped:
                return
            if pieces:
                continue  # more may have come while these were sent
            if self._journal.finished and self._command.outcome is not None:
                break
            await self._wait()
        await self._send_end(stream)

    async def _wait(self) -> None:
        if self._journal.finished:
            await self._command.ended.wait()
        else:
            await self._journal.changed()

    async def _send_piece(self, stream: ByteStream, piece: Piece) -> None:
        expected = self._offsets[piece.stream]
        if piece.end <= expected:
            return
        if piece.offset > expected:
            await stream.send(self._gap(piece.stream, piece.offset, piece.seq - 1))
        offset = max(piece.offset, expected)
        data = piece.data[offset - piece.offset :]
        self._offsets[piece.stream] = piece.end
        kind = _KINDS[piece.stream]
        await stream.send(encode_piece(kind, seq=piece.seq, offset=offset, data=data))

    async def _send_end(self, stream: ByteStream) -> None:
        last = self._journal.next_seq
        for name, kept in self._journal.kept.items():
            if kept.total > self._offsets[name]:
                await stream.send(self._gap(name, kept.total, last - 1))
        record = self._command.record(now=anyio.current_time(), output=False)
        await stream.send(_control({"ended": {"seq": last, "exec": record}}))

    def _gap(self, name: str, until: int, seq: int) -> bytes:
        offset = self._offsets[name]
        self._offsets[name] = until
        gap = {"stream": name, "offset": offset, "bytes": until - offset, "seq": seq}
        return _control({"gap": gap})

    async def _listen(self, stream: ByteStream, early: bytes, scope: anyio.CancelScope) -> None:
        """Frames in. A reader that leaves, or talks nonsense, ends the whole line."""
        decoder, data = FrameDecoder(), early
        try:
            while True:
                for frame in decoder.feed(data):
                    await self._take(frame.kind, frame.payload)
                data = await stream.receive(_READ_BYTES)
        except (anyio.EndOfStream, anyio.BrokenResourceError, FrameError, ValueError, Refusal):
            scope.cancel()

    async def _take(self, kind: FrameKind, payload: bytes) -> None:
        if kind is FrameKind.CONTROL:
            self._take_control(json.loads(payload))
            return
        if self._command.stdin is None:
            return
        if not payload:
            self._command.stdin.end()
            return
        with suppress(Refusal):  # the process has closed its input: what comes is thrown away
            await self._command.stdin.put(payload)

    def _take_control(self, said: dict[str, Any]) -> None:
        if "signal" in said:
            deliver(self._command, check_signal(said["signal"]))
        if "resize" in said and isinstance(self._command.stdin, Terminal):
            self._command.stdin.size = read_size(said["resize"])


def _control(said: dict[str, Any]) -> bytes:
    return encode(FrameKind.CONTROL, json.dumps(said).encode())
