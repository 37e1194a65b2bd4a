"""What the chart renders, over many values: real objects of every supported Kubernetes, settings
that the daemon takes, no right too many, and a sentence that names the mend where values are wrong.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from sandboxd.backends.kubernetes.doctor import _FORWARDING, _PREFETCHING, _RIGHTS
from sandboxd.guest.tcp import GUEST_PORT
from sandboxd.settings import Settings, load_settings
from sandboxd.telemetry.metrics import Metrics
from tests.support.cluster_tools import tool
from tests.support.helm import CHART, helm

pytestmark = pytest.mark.timeout(120)

Json = dict[str, Any]

VERSIONS = ("1.27", "1.30", "1.33", "1.36")
DIGEST = f"sha256:{'a1' * 32}"
# Kinds of others, whose schemas come with those who want them.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "HTTPRoute"}

MATRIX: Mapping[str, Json] = {
    "as it comes": {},
    "everything": {
        "image": {"digest": DIGEST},
        "guestImage": {"digest": DIGEST},
        "imagePullSecrets": [{"name": "registry"}],
        "auth": {"keys": [{"name": "trainer", "quota": {"leases": 5}}, {"name": "eval"}]},
        "limits": {"max_sandboxes": 2500},
        "wayOut": {"wider": False},
        "mcpServers": {
            "search": {
                "template": "python",
                "command": ["python3", "-m", "search_server"],
                "replicas": {"min": 0, "max": 2},
            }
        },
        "log": {"level": "warning"},
        "compat": {"e2b": {"images": {"*": "python"}}},
        "templates": {
            "python": {"network": {"allow": ["pypi.example:443"]}, "env": {"A": 'q"u\\o\nte'}},
            "gpu.large": {
                "image": "registry.internal/cuda:12",
                "resources": {"cpu": 0.5, "gpu": 1},
                "kubernetes": {
                    "node_selector": {"pool": "gpu"},
                    "tolerations": [{"key": "gpu", "operator": "Exists"}],
                    "spec": {"dnsPolicy": "Default"},
                },
            },
        },
        "sandboxes": {
            "namespace": "sandboxes",
            "networkPolicy": "enforced",
            "guest": "forward",
            "guestVolume": "copy",
            "seccompProfile": "profiles/sandboxd.json",
            "prefetchImages": True,
            "allowImages": ["registry.internal/*"],
            "imagePullSecrets": ["registry"],
            "pod": {"node_selector": {"pool": "sandboxes"}},
            "priorityClass": {"name": "rollouts", "create": True},
            "resourceQuota": {"pods": "500", "requests.cpu": 200},
            "podDisruptionBudget": {"enabled": True},
        },
        "persistence": {"storageClass": "fast", "annotations": {"a": "b"}},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "ingress": {
            "enabled": True,
            "host": "sandboxd.internal",
            "tlsSecret": "tls",
            "className": "nginx",
            "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "60"},
        },
        "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"team": "rl"}}}]},
        "rbac": {"runtimeClasses": True},
        "priorityClassName": "system",
        "nodeSelector": {"pool": "control"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
        "podDisruptionBudget": {"enabled": True},
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True},
        },
        "telemetry": {"otlpEndpoint": "http://collector:4318"},
    },
    "by a gateway": {
        "httpRoute": {"enabled": True, "host": "sandboxd.internal", "parentRefs": [{"name": "g"}]}
    },
    "next to nothing": {
        "auth": {"existingSecret": "ours"},
        "persistence": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "theirs"},
        "uninstall": {"sweep": False},
    },
    "a claim that is there": {"persistence": {"existingClaim": "ours"}, "fullnameOverride": "box"},
}


def render(values: Json, folder: Path, *words: str) -> list[Json]:
    """The objects of a release `rollouts` in `rl`."""
    text = helm("template", "rollouts", str(CHART), "-n", "rl", *_file(values, folder), *words)
    return [each for each in yaml.safe_load_all(text) if each]


def _file(values: Json, folder: Path) -> list[str]:
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    return ["-f", str(file)]


def of_kind(objects: list[Json], kind: str) -> list[Json]:
    return [each for each in objects if each["kind"] == kind]


def settings_of(objects: list[Json], folder: Path) -> Settings:
    """What the daemon makes of its configuration; keys are there."""
    (config,) = [
        each
        for each in of_kind(objects, "ConfigMap")
        if each["metadata"]["name"].endswith("-config")
    ]
    keys = folder / "keys"
    keys.mkdir(exist_ok=True)
    text = config["data"]["sandboxd.toml"].replace("/etc/sandboxd/keys", str(keys))
    for name in re.findall(rf'"{keys}/(.+)"', text):
        (keys / name).write_text(f"{name}-0123456789abcdef")
        (keys / name).chmod(0o600)
    file = folder / "sandboxd.toml"
    file.write_text(text)
    return load_settings(file, env={})


def pod_specs(objects: list[Json]) -> Iterator[tuple[str, Json]]:
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Pod":
            yield name, each["spec"]
        elif each["kind"] in {"Deployment", "Job"}:
            yield name, each["spec"]["template"]["spec"]


def test_helm_lint_has_nothing_against_it(tmp_path: Path) -> None:
    for values in MATRIX.values():
        assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), *_file(values, tmp_path))


@pytest.mark.requirement("OP-08")
@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_every_object_is_one_of_every_supported_kubernetes(values: Json, tmp_path: Path) -> None:
    for version in VERSIONS:
        objects = render(values, tmp_path, "--kube-version", f"{version}.0")
        assert len({(o["kind"], o["metadata"]["name"]) for o in objects}) == len(objects)
        for each in objects:
            if each["kind"] not in FOREIGN:
                kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_the_daemon_takes_the_configuration(values: Json, tmp_path: Path) -> None:
    settings = settings_of(render(values, tmp_path), tmp_path)
    assert settings.backend.kind == "kubernetes"
    assert len(settings.installation) == 12
    assert [key.name for key in settings.server.api_keys]
    assert settings.server.host == "0.0.0.0"
    assert set(settings.templates) == {"python"} | set(values.get("templates", ()))


def test_what_values_say_is_what_the_daemon_is_told(tmp_path: Path) -> None:
    settings = settings_of(render(MATRIX["everything"], tmp_path), tmp_path)
    assert settings.server.public_url == "https://sandboxd.internal"
    assert settings.limits.max_sandboxes == 2500
    assert settings.backend.kubernetes.namespace == "sandboxes"
    assert settings.backend.kubernetes.guest_image == f"sandboxd/guest@{DIGEST}"
    assert settings.otlp_endpoint == "http://collector:4318"
    assert dict(settings.compat["e2b"]) == {"*": "python"}
    assert settings.templates["python"].env == {"A": 'q"u\\o\nte'}
    fields = json.loads(settings.templates["gpu.large"].spec.pod.fields)
    assert fields["priorityClassName"] == "rollouts"
    assert fields["nodeSelector"] == {"pool": "gpu"}
    assert settings.backend.kubernetes.image_pull_secrets == ("registry",)
    leases = {key.name: key.quota.leases for key in settings.server.api_keys}
    assert leases == {"trainer": 5, "eval": None, "metrics": 0}


@pytest.mark.requirement("OP-06")
def test_every_image_is_named_by_its_digest_where_one_is_given(tmp_path: Path) -> None:
    objects = render(MATRIX["everything"], tmp_path)
    images = [each["image"] for _, spec in pod_specs(objects) for each in spec["containers"]]
    assert images == [f"sandboxd/daemon@{DIGEST}"] * 3
    text = yaml.safe_dump_all(render({}, tmp_path))
    assert ":latest" not in text
    assert not re.search(r"\b(curl|wget|pip install|apt-get)\b", text)


@pytest.mark.requirement("OP-08")
@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_all_of_our_own_pods_are_what_restricted_asks_for(values: Json, tmp_path: Path) -> None:
    found = dict(pod_specs(render(values, tmp_path)))
    assert found
    for name, spec in found.items():
        of_pod = spec["securityContext"]
        assert of_pod["runAsNonRoot"] and of_pod["runAsUser"] > 0, name
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            held = container["securityContext"]
            assert held["allowPrivilegeEscalation"] is False, name
            assert held["readOnlyRootFilesystem"] is True, name
            assert held["capabilities"] == {"drop": ["ALL"]}, name
        kinds = {next(k for k in volume if k != "name") for volume in spec.get("volumes", ())}
        assert kinds <= {"configMap", "secret", "persistentVolumeClaim", "emptyDir"}, name


@pytest.mark.requirement("OP-03")
def test_the_role_is_what_the_daemon_asks_for_and_nothing_over_the_cluster(tmp_path: Path) -> None:
    plain = render({}, tmp_path)
    assert not [each for each in plain if each["kind"].startswith("Cluster")]
    wanted = {(group, kind, verb) for group, kind, verbs in _RIGHTS for verb in verbs}
    assert rights(plain, "rollouts-sandboxd") == wanted
    forwarding = {(group, kind, verb) for group, kind, verbs in _FORWARDING for verb in verbs}
    by_forward = render({"sandboxes": {"guest": "forward"}}, tmp_path)
    assert rights(by_forward, "rollouts-sandboxd") == wanted | forwarding
    prefetching = {(group, kind, verb) for group, kind, verbs in _PREFETCHING for verb in verbs}
    with_images = render({"sandboxes": {"prefetchImages": True}}, tmp_path)
    assert rights(with_images, "rollouts-sandboxd") == wanted | prefetching
    (cluster,) = of_kind(render({"rbac": {"runtimeClasses": True}}, tmp_path), "ClusterRole")
    assert cluster["rules"] == [
        {"apiGroups": ["node.k8s.io"], "resources": ["runtimeclasses"], "verbs": ["list"]}
    ]


def rights(objects: list[Json], role: str) -> set[tuple[str, str, str]]:
    (found,) = [each for each in of_kind(objects, "Role") if each["metadata"]["name"] == role]
    return {
        (group, kind, verb)
        for rule in found["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_policy_lets_the_daemon_in_where_guests_listen(tmp_path: Path) -> None:
    policies = of_kind(render({}, tmp_path), "NetworkPolicy")
    (guests,) = [each for each in policies if each["metadata"]["name"].endswith("-to-guests")]
    assert guests["spec"]["ingress"][0]["ports"] == [{"port": GUEST_PORT, "protocol": "TCP"}]


def test_two_releases_share_no_name_and_no_mark(tmp_path: Path) -> None:
    names = []
    for release, namespace in (("a", "x"), ("b", "x"), ("a", "y")):
        text = helm("template", release, str(CHART), "-n", namespace)
        objects = [each for each in yaml.safe_load_all(text) if each]
        names.append(settings_of(objects, tmp_path).installation[:8])
    assert len(set(names)) == 3


def test_only_faults_of_ours_page(tmp_path: Path) -> None:
    (rule,) = of_kind(render(MATRIX["everything"], tmp_path), "PrometheusRule")
    alerts = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    pages = [each for each in alerts if each["labels"]["severity"] == "page"]
    assert pages
    assert {each["labels"]["fault"] for each in pages} == {"infra"}
    for each in pages:
        counted = re.findall(r'sandboxd_faults_total\{[^}]*fault="(\w+)"', each["expr"])
        assert set(counted) <= {"infra"}


def test_alerts_and_dashboard_ask_for_metrics_that_there_are(tmp_path: Path) -> None:
    names = {
        f"{family.name}{suffix}"
        for family in Metrics().registry.collect()
        for suffix in {"counter": ["_total"], "histogram": ["_bucket", "_count"]}.get(
            family.type, [""]
        )
    }
    objects = render(MATRIX["everything"], tmp_path)
    (rule,) = of_kind(objects, "PrometheusRule")
    (board,) = [o for o in of_kind(objects, "ConfigMap") if "sandboxd.json" in o["data"]]
    board_says = json.loads(board["data"]["sandboxd.json"])
    asked = set(re.findall(r"\bsandboxd_\w+", json.dumps([rule, board_says["panels"]])))
    assert len(asked) > 8
    assert asked <= names


def test_prometheus_itself_takes_the_alerts(tmp_path: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool (Debian, Ubuntu: `apt-get install prometheus`)")
    (rule,) = of_kind(render(MATRIX["everything"], tmp_path), "PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]))
    done = subprocess.run([program, "check", "rules", str(file)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_change_of_the_configuration_or_of_keys_is_another_pod(tmp_path: Path) -> None:
    def sums(values: Json) -> Json:
        (deployment,) = of_kind(render(values, tmp_path), "Deployment")
        found: Json = deployment["spec"]["template"]["metadata"]["annotations"]
        return found

    as_it_is = sums({})
    assert sums({"limits": {"max_sandboxes": 5}}) != as_it_is
    assert sums({"auth": {"keys": [{"name": "other"}]}}) != as_it_is
    assert sums({"service": {"annotations": {"a": "b"}}}) == as_it_is


WRONG: Mapping[str, tuple[Json, str]] = {
    "no template": ({"templates": {"python": None}}, "give one below `templates`"),
    "no key": ({"auth": {"keys": []}}, "name at least one key below `auth.keys`"),
    "one name twice": (
        {"auth": {"keys": [{"name": "a"}, {"name": "a"}]}},
        "give each of `auth.keys` a name of its own",
    ),
    "a key given twice": (
        {"auth": {"existingSecret": "s", "keys": [{"name": "a", "value": "0123456789abcdef"}]}},
        "take `value` away, or `auth.existingSecret`",
    ),
    "Prometheus' name": (
        {"auth": {"keys": [{"name": "metrics"}]}, "metrics": {"key": True}},
        "give the one of `auth.keys` another name",
    ),
    "no host": ({"ingress": {"enabled": True}}, "set `ingress.host`"),
    "no gateway": ({"httpRoute": {"enabled": True}}, "set `httpRoute.parentRefs`"),
    "no class": ({"sandboxes": {"priorityClass": {"create": True}}}, "priorityClass.name"),
    "the default account": (
        {"serviceAccount": {"create": False}},
        "name another by `serviceAccount.name`",
    ),
    "a sweep without rights": ({"rbac": {"create": False}}, "set `uninstall.sweep=false`"),
    "no such template": ({"tests": {"template": "py"}}, "name one of python"),
    "more ready than there may be": (
        {"templates": {"python": {"pool": {"ready": 65}}}},
        "raise `max`, or lower `ready`",
    ),
    "a slip": ({"templates": {"python": {"imagee": "x"}}}, "'imagee' not allowed"),
    "replicas": ({"replicaCount": 2}, "'replicaCount' not allowed"),
    "a text for a number": (
        {"templates": {"python": {"resources": {"cpu": "2"}}}},
        "/templates/python/resources/cpu': got string, want number",
    ),
    "no digest": ({"image": {"digest": "latest"}}, "/image/digest"),
    "no network": (
        {"templates": {"python": {"network": "all"}}},
        "must be one of 'none', 'internet'",
    ),
}


@pytest.mark.parametrize(("values", "mend"), WRONG.values(), ids=WRONG)
def test_wrong_values_fail_with_a_sentence_that_names_the_mend(
    values: Json, mend: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [tool("helm"), "template", "t", str(CHART), *_file(values, tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert mend in done.stderr
