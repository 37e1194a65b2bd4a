"""MCP servers as they are declared, and as they are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Scope = Literal["rollout", "shared"]
Restart = Literal["never", "on_exit"]
OWN_SERVER = "sandboxd"  # at the top, its tools are the daemon's own


class McpState(StrEnum):
    """Of a server: a stopped one is started for its next call, a dead one answers none."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """One server of a sandbox: a program that speaks stdio, or HTTP on a port inside.

    command: argv; empty for one that others start. port: 0 for stdio. path: where it speaks, with
    a port. env: over the sandbox's own, sorted. hidden: arguments that callers neither see nor
    give, and the texts that they are filled with, sorted.
    scope `shared`: the name of one that stands at the top of the configuration; no more is said.
    """

    name: str
    scope: Scope = "rollout"
    command: tuple[str, ...] = ()
    port: int = 0
    path: str = "/mcp"
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    cwd: str = ""
    prestart: bool = False
    restart: Restart = "never"
    hidden: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMcpServer:
    """One server for all leases that are told of it, in sandboxes of its own.

    template: of those sandboxes. max_in_flight: calls that one of them has at once. idle_s: seconds
    without a call after which one more than `least` is ended.
    """

    server: McpServer
    template: str
    least: int = 0
    most: int = 1
    max_in_flight: int = 16
    idle_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class McpStatus:
    """A server as it is now. restarts: how often it was started anew after it had ended."""

    name: str
    scope: Scope
    transport: Literal["stdio", "http"]
    state: McpState
    restarts: int = 0
    replicas: int | None = None  # of a shared one
    sessions: int = 0


def exec_id_of(name: str, generation: int) -> str:
    """Under what id its command runs; generation 0 began before the lease."""
    return f"mcp:{name}:{generation}"


def by_name(servers: tuple[McpServer, ...]) -> Mapping[str, McpServer]:
    """The same to look one up in."""
    return {server.name: server for server in servers}


_PLACE = re.compile(r"\{([^{}]*)\}")
_FACTS = ("sandbox_id", "run_id", "group_id", "rollout_id")


def flaw(server: McpServer) -> str | None:
    """What is wrong with a declaration, and its mend; None for a good one."""
    says_more = server.command or server.port or server.env or server.cwd or server.prestart
    if server.scope == "shared":
        text = "a shared server is declared at the top, and named here alone"
        return text if says_more else None
    if not (server.command or server.port):
        return "give a `command` (stdio), a `port` (HTTP inside), or both"
    if server.prestart and not server.command:
        return "`prestart` needs the `command` that is to run"
    if server.restart == "on_exit" and not server.command:
        return '`restart = "on_exit"` needs the `command` that is to run'
    if not server.path.startswith("/"):
        return "`path` begins with a slash"
    return next(filter(None, (_wrong_place(text) for _, text in server.hidden)), None)


def _wrong_place(text: str) -> str | None:
    for place in _PLACE.findall(text):
        if place not in _FACTS and not place.startswith("label."):
            known = ", ".join(f"{{{fact}}}" for fact in _FACTS)
            return f"`hidden`: there is no {{{place}}}; there are {known} and {{label.KEY}}"
    return None


def filled(text: str, facts: Mapping[str, str | None]) -> str:
    """A hidden argument's value. Raises KeyError with a place that the lease has nothing for."""

    def value(found: re.Match[str]) -> str:
        fact = facts.get(found[1])
        if fact is None:
            raise KeyError(found[1])
        return fact

    return _PLACE.sub(value, text)
