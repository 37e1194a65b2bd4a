"""Which MCP servers a lease sees: its template's, those it names of them, and its own. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from sandboxd.errors import SandboxdError
from sandboxd.model.lease import LeaseTerms
from sandboxd.model.mcp_server import McpServer, by_name, filled, flaw
from sandboxd.model.template import Template
from sandboxd.wire.codes import ErrorCode

if TYPE_CHECKING:
    from sandboxd.leases.terms import LeaseWish

_MOST = 64


def servers_of(
    wish: LeaseWish, template: Template, *, shared: Container[str]
) -> tuple[McpServer, ...]:
    """Names choose among the template's and the shared ones; declarations come on top, and take
    the place of one of the same name. Raises `bad_request`.
    """
    servers = dict(by_name(template.mcp_servers))
    names = [each for each in wish.mcp_servers or () if isinstance(each, str)]
    if wish.mcp_servers is not None and len(names) == len(wish.mcp_servers):
        servers = {name: _named(name, servers, shared=shared) for name in names}
    for server in wish.mcp_servers or ():
        if isinstance(server, McpServer):
            servers[server.name] = _declared(server, shared=shared)
    if len(servers) > _MOST:
        raise _wrong("", f"a sandbox has at most {_MOST} MCP servers")
    for server in servers.values():
        _check_places(server, wish)
    return tuple(servers.values())


def facts_of(terms: LeaseTerms | LeaseWish, *, sandbox_id: str | None) -> Mapping[str, str | None]:
    """What hidden arguments are filled with."""
    return {
        "sandbox_id": sandbox_id,
        "run_id": terms.run_id,
        "group_id": terms.group_id,
        "rollout_id": terms.rollout_id,
        **{f"label.{name}": value for name, value in terms.labels.items()},
    }


def _declared(server: McpServer, *, shared: Container[str]) -> McpServer:
    if (text := flaw(server)) is not None:
        raise _wrong(server.name, text)
    return _named(server.name, {}, shared=shared) if server.scope == "shared" else server


def _named(name: str, servers: Mapping[str, McpServer], *, shared: Container[str]) -> McpServer:
    if name in servers:
        return servers[name]
    if name in shared:
        return McpServer(name=name, scope="shared")
    there_are = ", ".join(servers) or "none"
    raise _wrong(name, f"there is no MCP server {name!r}; the template has: {there_are}")


def _check_places(server: McpServer, wish: LeaseWish) -> None:
    facts = facts_of(wish, sandbox_id="")
    for name, value in server.hidden:
        try:
            filled(value, facts)
        except KeyError as error:
            text = f"its hidden argument {name!r} needs {error.args[0]}, which the lease lacks"
            raise _wrong(server.name, f"{text}: give it") from None


def _wrong(name: str, text: str) -> SandboxdError:
    field = f"mcp_servers.{name}" if name else "mcp_servers"
    return SandboxdError(ErrorCode.BAD_REQUEST, f"{field}: {text}", details={"field": field})
