"""The chart's life on a real cluster: install, first command, upgrades that lose nothing, end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd_client import NotFound
from tests.contract.speaker import eventually
from tests.support.cluster import TestCluster
from tests.support.cluster_tools import with_tools
from tests.support.helm import Release, release, settle

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

_OURS = (
    "pods,secrets,persistentvolumeclaims,networkpolicies,serviceaccounts,roles,rolebindings,"
    "configmaps,services,deployments,daemonsets,jobs"
)


def left(opened: Release) -> list[str]:
    """What is in the namespace that a namespace does not have by itself."""
    found = opened.kubectl("get", _OURS, "-o", "name").split()
    return [each for each in found if "default" not in each and "kube-root-ca.crt" not in each]


def assert_only_in_its_namespace(opened: Release) -> None:
    """What the daemon's account may do, as the cluster itself says."""

    def may(*words: str) -> bool:
        account = f"system:serviceaccount:{opened.namespace}:{opened.deployment}"
        try:
            told = opened.cluster.kubectl("auth", "can-i", *words, "--as", account)
        except subprocess.CalledProcessError as refused:
            told = str(refused.stdout)
        return told.strip() == "yes"

    assert may("create", "pods", "-n", opened.namespace)
    for words in (
        ("get", "secrets", "-A"),
        ("get", "secrets", "-n", opened.namespace),
        ("list", "secrets", "-n", "kube-system"),
        ("create", "pods", "--subresource=exec", "-n", "kube-system"),
        ("create", "pods", "--subresource=exec", "-n", opened.namespace),
        ("delete", "pods", "-n", "default"),
        ("list", "nodes"),
        ("list", "namespaces"),
        ("update", "deployments", "--subresource=scale", "-n", opened.namespace),
    ):
        assert not may(*words), words


@pytest.mark.requirement("OP-03", "OP-10")
def test_a_release_leases_passes_its_own_test_and_leaves_nothing_when_it_is_uninstalled(
    fresh: Release,
) -> None:
    fresh.install()
    settle(fresh, 1)
    told = fresh.test()
    assert "was leased, ran a command, and goes" in told
    assert_only_in_its_namespace(fresh)
    with fresh.client() as client:
        held = [client.lease("python") for _ in range(8)]
        assert held[0].exec("echo $((6 * 7))").stdout == "42\n"
    assert len(fresh.sandboxes()) >= 8
    fresh.uninstall()
    assert fresh.sandboxes() == []
    assert left(fresh) == []


@pytest.mark.requirement("OP-01", "OP-02")
def test_upgrades_restarts_and_a_rollback_lose_no_lease_no_command_and_no_key(
    fresh: Release,
) -> None:
    fresh.install("--set", "templates.python.pool.ready=2")
    settle(fresh, 2)
    secret, key = fresh.secret(), fresh.key()
    with fresh.client() as client:
        held = [client.lease("python") for _ in range(8)]
        kernel = held[0].kernel()
        assert kernel.execute("known = 42").outcome == "ok"
        for number, sandbox in enumerate(held):
            sandbox.start(["/bin/sh", "-c", f"sleep 75; echo {number}"], exec_id="job")
        settle(fresh, 10)
        boxes = set(fresh.sandboxes())
        fresh.upgrade("--set", "templates.python.pool.ready=2")
        fresh.upgrade(
            *("--set", "templates.python.pool.ready=2", "--set", "limits.max_sandboxes=50"),
            *("--set", "templates.other.image=sandboxd/python:latest", "--set", "log.level=debug"),
        )
        assert {pool.template for pool in client.pools()} == {"python", "other"}
        fresh.kubectl("rollout", "restart", f"deployment/{fresh.deployment}")
        fresh.rolled_out()
        fresh.rollback()
        assert {pool.template for pool in client.pools()} == {"python"}
        assert (fresh.secret(), fresh.key()) == (secret, key)
        assert kernel.execute("known").text == "42"
        told = [sandbox.process("job").wait() for sandbox in held]
        assert [each.stdout for each in told] == [f"{number}\n" for number in range(len(held))]
        assert boxes <= set(fresh.sandboxes()), "stock or leases were made anew"
        for sandbox in held:
            sandbox.release(wait_s=30)
    settle(fresh, 2)


@pytest.mark.slow
def test_a_configuration_that_the_daemon_refuses_costs_nothing_that_a_rollback_does_not_mend(
    fresh: Release,
) -> None:
    fresh.install()
    with fresh.client() as client:
        sandbox = client.lease("python")
        sandbox.files.write("kept", "here")
        wrong = "templates.python.network.allow[0]=no port"
        told = fresh.upgrade("--set", wrong, "--timeout=20s", check=False)
        assert "Error: UPGRADE FAILED" in told
        assert "templates.python.network" in fresh.words()
        fresh.rollback()
        assert sandbox.files.read("kept") == b"here"


@pytest.mark.slow
@pytest.mark.serial
def test_a_drained_node_ends_leases_by_a_name_and_never_in_silence(fresh: Release) -> None:
    fresh.install()
    settle(fresh, 1)
    with fresh.client() as client:
        sandbox = client.lease("python")
        settle(fresh, 2)
        (node,) = fresh.cluster.kubectl("get", "nodes", "-o", "name").split()
        mark = f"sandboxd/installation={fresh.installation}"
        try:
            fresh.cluster.kubectl(
                *("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data"),
                *("--pod-selector", mark, "--timeout=60s"),
            )
        finally:
            fresh.cluster.kubectl("uncordon", node)
        eventually(lambda: sandbox.info().end is not None, within_s=30, what="its lease ends")
        end = sandbox.info().end
        assert end is not None
        # Nodes before 1.26 say no more of a drain than that somebody deleted the pod.
        assert end.mask
        assert (end.reason, end.fault) in {("evicted", "infra"), ("died", "unknown")}
    settle(fresh, 1)


@pytest.mark.slow
def test_two_releases_side_by_side_never_touch_each_other(served: TestCluster) -> None:
    with release(served, "one", "helm-both") as one, release(served, "two", "helm-two") as two:
        shared = ("--set", "sandboxes.namespace=helm-both")
        one.install()
        two.install(*shared)
        settle(one, 1)
        settle(two, 1)
        with one.client() as first, two.client() as second:
            mine, theirs = first.lease("python"), second.lease("python")
            with pytest.raises(NotFound):
                second.sandbox(mine.id).info()
            settle(one, 2)
            settle(two, 2)
            before = set(two.sandboxes())
            one.uninstall()
            assert one.sandboxes() == []
            assert set(two.sandboxes()) == before
            assert theirs.exec("echo on").stdout == "on\n"
        two.uninstall()
        assert two.sandboxes() == []
        assert left(one) == left(two) == []


@pytest.mark.slow
def test_what_is_printed_leads_a_newcomer_to_a_first_command(
    fresh: Release, tmp_path: Path
) -> None:
    """In two terminals, with the program as it is installed."""
    printed = fresh.install()
    commands = re.findall(r"(?m)^    (\S.*)$", printed)
    ready, forward, *rest = commands
    assert "port-forward" in forward
    environ = {name: value for name, value in os.environ.items() if "SANDBOXD_" not in name} | {
        "KUBECONFIG": str(fresh.cluster.kubeconfig),
        "PATH": f"{Path(sys.executable).parent}:{with_tools()}",
        "HOME": str(tmp_path),
    }
    subprocess.run(["bash", "-euc", ready], env=environ, check=True, timeout=300)
    with subprocess.Popen(
        ["bash", "-euc", f"exec {forward}"], env=environ, stdout=subprocess.PIPE, text=True
    ) as forwarding:
        try:
            assert forwarding.stdout is not None
            assert forwarding.stdout.readline().startswith("Forwarding")
            told = subprocess.run(
                ["bash", "-euc", "\n".join(rest)],
                env=environ,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        finally:
            forwarding.kill()
    assert told.returncode == 0, told.stderr
    assert "hello\n" in told.stdout
