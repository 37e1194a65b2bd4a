"""What runs in a box before anybody leases it: what it is started with, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping

from sandboxd.leases.slots import Slots
from sandboxd.model.claim import Claim, command_limits
from sandboxd.model.lease import LeaseTerms
from sandboxd.model.mcp_server import McpServer, by_name
from sandboxd.model.template import BoxSpec


def expected_claim(spec: BoxSpec, *, limits: Mapping[str, int], slots: Slots) -> Claim:
    """The claim of a lease that asks for nothing of its own. limits: on every process of a box;
    slots: lends it processors.
    """
    terms = spec.kernel_terms
    return Claim(
        lease_id="",
        env=dict(terms.env),
        workdir=terms.workdir,
        user=terms.user,
        capabilities=terms.capabilities,
        affinity=slots.lend(spec.resources.cpu),
        **command_limits(limits, spec.resources),
    )


def unfit_servers(terms: LeaseTerms, claim: Claim) -> list[McpServer]:
    """MCP servers that run in the box and are not what the lease asks for. A program's environment
    is set when it starts, so one that was started with another is of no use.
    """
    early = terms.spec.kernel_terms
    as_expected = (
        dict(claim.env) == dict(early.env)
        and claim.workdir == early.workdir
        and claim.user == early.user
        and claim.capabilities == early.capabilities
    )
    wanted = by_name(terms.mcp_servers)
    return [
        server
        for server in terms.spec.mcp_servers
        if not (as_expected and wanted.get(server.name) == server)
    ]
