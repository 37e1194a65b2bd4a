"""Opens the kubernetes backend: asks the cluster what it has, and puts the parts together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
from anyio import to_thread

from sandboxd.backends.kubernetes.backend import KubernetesBackend, Watched
from sandboxd.backends.kubernetes.deeds import PodDeeds
from sandboxd.backends.kubernetes.guest_volume import choose_guest_volume
from sandboxd.backends.kubernetes.imaging.keeping import keep_images
from sandboxd.backends.kubernetes.making import Ground, Maker
from sandboxd.backends.kubernetes.network.keeping import keep_policies
from sandboxd.backends.kubernetes.offering import Surroundings, capabilities_of
from sandboxd.backends.kubernetes.reaching.choice import choose_reach
from sandboxd.backends.kubernetes.reaching.short_calls import end_guest
from sandboxd.backends.kubernetes.removing import Remover
from sandboxd.backends.kubernetes.settings import KubernetesSettings
from sandboxd.backends.kubernetes.talking.credentials import empty_keys_dir, read_access
from sandboxd.backends.kubernetes.talking.server import (
    ApiServer,
    Refused,
    open_server,
    refused_call,
)
from sandboxd.backends.kubernetes.watching.book import PodBook
from sandboxd.backends.kubernetes.watching.census import Census
from sandboxd.backends.kubernetes.watching.feed import PodFeed
from sandboxd.backends.kubernetes.watching.judging import Judge
from sandboxd.backends.kubernetes.watching.living import Roster
from sandboxd.backends.parts.background import background
from sandboxd.errors import SandboxdError
from sandboxd.guest.tcp import guest_token
from sandboxd.wire.codes import ErrorCode

_CLOSING_S = 10.0
_SYNC_S = 60.0
_THREADS = 16
_DENIED = frozenset({401, 403})


@asynccontextmanager
async def open_kubernetes(settings: KubernetesSettings) -> AsyncIterator[KubernetesBackend]:
    """The backend, ready to make boxes. On leaving, boxes live on; only our watch of them ends.

    Raises `backend_unavailable`, naming the mend.
    """
    if not settings.secret:
        raise _unavailable("guests need a secret for their tokens")
    if settings.keys_dir is not None:
        await to_thread.run_sync(empty_keys_dir, settings.keys_dir)
    access = partial(read_access, settings.kubeconfig, settings.context, keys_dir=settings.keys_dir)
    server = await open_server(access, threads=_THREADS)
    try:
        async with _opened(server, settings) as backend:
            yield backend
    finally:
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await server.aclose()


@asynccontextmanager
async def _opened(
    server: ApiServer, settings: KubernetesSettings
) -> AsyncIterator[KubernetesBackend]:
    namespace = settings.namespace or server.access.namespace
    version = str((await server.get("/version")).get("gitVersion") or "")
    runtimes = await runtime_classes(server)
    token_of = partial(guest_token, settings.secret)
    reach = choose_reach(server, settings, namespace=namespace, token_of=token_of)
    volume = await choose_guest_volume(server, settings, namespace=namespace, version=version)
    ground = Ground(settings=settings, namespace=namespace, token_of=token_of, guest_volume=volume)
    async with (
        keep_policies(server, settings, namespace=namespace) as network,
        _watched(server, settings, namespace) as (book, feed, roster, judge),
        keep_images(server, book, settings, namespace=namespace) as images,
        background() as tasks,
    ):
        deeds = PodDeeds(server, namespace=namespace)
        tasks.start_soon(deeds.run, name="deeds of pods")
        remover = Remover(
            server,
            roster,
            book,
            end=lambda box: end_guest(reach, box.record),
            namespace=namespace,
            installation=settings.installation,
        )
        maker = Maker(server, ground=ground, reach=reach, book=book, judge=judge, remover=remover)
        found = Surroundings(runtimes=runtimes, enforced=network.enforced, version=version)
        census = Census(
            server, roster, book, feed, namespace=namespace, installation=settings.installation
        )
        yield KubernetesBackend(
            maker=maker,
            remover=remover,
            watched=Watched(book=book, roster=roster, judge=judge, census=census),
            reach=reach,
            deeds=deeds,
            images=images,
            capabilities=capabilities_of(settings, found),
        )
        network.is_needed = not book.flows or bool(book.all())


@asynccontextmanager
async def _watched(
    server: ApiServer, settings: KubernetesSettings, namespace: str
) -> AsyncIterator[tuple[PodBook, PodFeed, Roster, Judge]]:
    """A roster with its background tasks, its book filled once. Raises `backend_unavailable`."""
    book = PodBook()
    feed = PodFeed(server, book, namespace=namespace, installation=settings.installation)
    judge = Judge(server.lane(8), namespace=namespace)
    async with background() as tasks:
        roster = Roster(tasks, book, examine=judge.examine)
        await _fill(feed)
        tasks.start_soon(feed.run, name="cluster pods")
        yield book, feed, roster, judge


async def _fill(feed: PodFeed) -> None:
    try:
        with anyio.fail_after(_SYNC_S):
            await feed.list_all()
    except Refused as refusal:
        raise refused_call(refusal) from refusal
    except TimeoutError as error:
        raise _unavailable("its pods could not be listed in time") from error


async def runtime_classes(server: ApiServer) -> list[str] | None:
    """The names of the cluster's runtime classes; None: we may not ask."""
    try:
        found = await server.get("/apis/node.k8s.io/v1/runtimeclasses")
    except Refused as refusal:
        if refusal.status in _DENIED:
            return None
        if refusal.status == 404:
            return []
        raise refused_call(refusal) from refusal
    return [str(each["metadata"]["name"]) for each in found.get("items") or ()]


def _unavailable(why: str) -> SandboxdError:
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the kubernetes backend: {why}; `sandboxd doctor` names the mend",
    )
