"""What an API server tells by itself: a list of our pods, and every change of it from there on.

A watch is taken up again where it ended; where that is too long ago for the server, all is listed
anew. Judges nothing.
"""

from __future__ import annotations

import anyio
import structlog
from anyio import CapacityLimiter, from_thread, to_thread

from sandboxd.backends.kubernetes.objects import pods_path, selector
from sandboxd.backends.kubernetes.pods import Pod, pod_from
from sandboxd.backends.kubernetes.talking.server import ApiServer, Json, Refused
from sandboxd.backends.kubernetes.talking.watch import WatchStream
from sandboxd.backends.kubernetes.watching.book import PodBook
from sandboxd.errors import SandboxdError

log = structlog.get_logger(__name__)

_PAGE = 500
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_GONE = 410  # what the server says of a place in its history that it no longer has


class _TooLongAgo(Exception):
    """The server no longer knows what has happened since."""


class PodFeed:
    """Fills one book, for as long as `run` runs."""

    def __init__(
        self, server: ApiServer, book: PodBook, *, namespace: str, installation: str
    ) -> None:
        self._server = server.lane(1)
        self._book = book
        self._path = pods_path(namespace)
        self._selector = selector(installation)
        self._limiter = CapacityLimiter(1)

    async def run(self) -> None:
        """Until cancelled. A server that does not answer is waited for."""
        pause = _FIRST_PAUSE_S
        while True:
            began = anyio.current_time()
            try:
                await self._list_and_watch()
            except (SandboxdError, Refused, _TooLongAgo) as error:
                log.warning("pods.unheard", error=str(error))
            finally:
                self._book.flows = False
            if anyio.current_time() - began > _LONGEST_PAUSE_S:
                pause = _FIRST_PAUSE_S
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def list_all(self) -> None:
        """Bring the book up to date. Raises Refused, `backend_unavailable`."""
        await self._list()

    async def _list(self) -> str:
        """The place in the server's history at which the list stands."""
        asked_at = anyio.current_time()
        pods: list[Pod] = []
        more = ""
        while True:
            page = await self._server.get(
                self._path, labelSelector=self._selector, limit=_PAGE,
                **({"continue": more} if more else {}),
            )  # fmt: skip
            pods += [pod_from(body) for body in page.get("items") or ()]
            more = str(page["metadata"].get("continue") or "")
            if not more:
                break
        self._book.settle(pods, asked_at=asked_at)
        return str(page["metadata"]["resourceVersion"])

    async def _list_and_watch(self) -> None:
        place = await self._list()
        self._book.flows = True
        while True:
            access = self._server.access
            query = {"labelSelector": self._selector, "resourceVersion": place}
            stream = WatchStream(access, self._path, query)
            try:
                place = await to_thread.run_sync(
                    self._read, stream, place, limiter=self._limiter, abandon_on_cancel=True
                )
            except Refused as refusal:
                if refusal.status == _GONE:
                    raise _TooLongAgo(refusal.detail) from refusal
                if refusal.status != 401:
                    raise
                await self._server.renew(access)
            finally:
                stream.close()

    def _read(self, stream: WatchStream, place: str) -> str:
        """One watch to its end, in a thread of its own; the place in history that it came to."""
        for change in stream.changes():
            kind, body = str(change.get("type")), change.get("object") or {}
            if kind == "ERROR":
                raise _error(body)
            place = str(body["metadata"]["resourceVersion"])
            if kind != "BOOKMARK":
                from_thread.run_sync(self._take, kind, pod_from(body))
        return place

    def _take(self, kind: str, pod: Pod) -> None:
        if kind == "DELETED":
            self._book.drop(pod)
        else:
            self._book.put(pod)


def _error(status: Json) -> Exception:
    code, words = int(status.get("code") or 0), str(status.get("message") or "")
    if code == _GONE:
        return _TooLongAgo(words)
    return Refused(code, reason=str(status.get("reason") or ""), detail=words)
