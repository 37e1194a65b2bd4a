"""Inspect's own checks of a sandbox provider, run by its own Python."""

import pytest_asyncio
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from sandboxd_client.integrations.inspect import SandboxdEnvironment


@pytest_asyncio.fixture
async def sandbox_env():
    environments = await SandboxdEnvironment.sample_init("checks", None, {})
    yield environments["default"]
    await SandboxdEnvironment.sample_cleanup("checks", None, environments, interrupted=False)
