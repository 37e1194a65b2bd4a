"""Keeps images on nodes for as long as an installation has pods, if the operator wants that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandboxd.backends.kubernetes.imaging.images import KubernetesImages
from sandboxd.backends.kubernetes.settings import KubernetesSettings
from sandboxd.backends.kubernetes.talking.server import ApiServer
from sandboxd.backends.kubernetes.watching.book import PodBook
from sandboxd.backends.parts.background import background


@asynccontextmanager
async def keep_images(
    server: ApiServer, book: PodBook, settings: KubernetesSettings, *, namespace: str
) -> AsyncIterator[KubernetesImages | None]:
    """None where nodes pull when a pod comes. On leaving what stands for images stays, unless there
    are no pods, as after a sweep.
    """
    if not settings.prefetch_images:
        yield None
        return
    images = KubernetesImages(server, book, settings, namespace=namespace)
    async with background() as tasks:
        tasks.start_soon(images.run, name="images on nodes")
        yield images
    if book.flows and not book.all():
        await images.clear()
