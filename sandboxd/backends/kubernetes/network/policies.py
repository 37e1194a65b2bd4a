"""The network policies of an installation. Pure bodies, and the calls that keep them in place."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from sandboxd.backends.kubernetes.objects import (
    INSTALLATION,
    ISOLATED,
    labels_of,
    policies_path,
)
from sandboxd.backends.kubernetes.talking.server import ApiServer, Json, Refused, refused_call
from sandboxd.guest.tcp import GUEST_PORT

_CONFLICT = 409


def policies_of(tag: str, installation: str, *, reached_from: Collection[str]) -> list[Json]:
    """Who may reach guests, and what isolated boxes may reach, which is nothing.

    reached_from: the ranges of the daemon's addresses as pods see them; empty: from the nodes
    alone, as the API server's port-forward is.
    """
    own = {INSTALLATION: installation}
    doors = [{"from": _blocks(reached_from), "ports": [{"port": GUEST_PORT, "protocol": "TCP"}]}]
    guests = {
        "podSelector": {"matchLabels": own},
        "policyTypes": ["Ingress"],
        "ingress": doors if reached_from else [],
    }
    isolated = {
        "podSelector": {"matchLabels": {**own, ISOLATED: "true"}},
        "policyTypes": ["Egress"],
        "egress": [],
    }
    return [
        _policy(f"sandboxd-{tag}-guests", installation, guests),
        _policy(f"sandboxd-{tag}-isolated", installation, isolated),
    ]


def _blocks(ranges: Collection[str]) -> list[Json]:
    return [{"ipBlock": {"cidr": str(ipaddress.ip_network(each))}} for each in ranges]


def _policy(name: str, installation: str, spec: Json) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": labels_of(installation)},
        "spec": spec,
    }


async def put_policies(server: ApiServer, namespace: str, policies: Collection[Json]) -> None:
    """Have these in place, whatever stood there. Raises `backend_unavailable`."""
    for policy in policies:
        try:
            await _put(server, namespace, policy)
        except Refused as refusal:
            raise refused_call(refusal) from refusal


async def _put(server: ApiServer, namespace: str, policy: Json) -> None:
    try:
        await server.create(policies_path(namespace), policy)
    except Refused as refusal:
        if refusal.status != _CONFLICT:
            raise
        await server.replace(policies_path(namespace, policy["metadata"]["name"]), policy)


async def drop_policies(server: ApiServer, namespace: str, policies: Collection[Json]) -> None:
    """Take them away; gone is fine. Raises Refused, `backend_unavailable`."""
    for policy in policies:
        await server.delete(policies_path(namespace, policy["metadata"]["name"]))
