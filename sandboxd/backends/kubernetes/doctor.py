"""What a cluster and our account in it can do for this backend, each gap with its mend.

For `sandboxd doctor`. Blocking; makes nothing: pods are tried dry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sandboxd.backends.kubernetes.creating import PodPlan, pod_body
from sandboxd.backends.kubernetes.objects import pods_path
from sandboxd.backends.kubernetes.settings import KubernetesSettings
from sandboxd.backends.kubernetes.talking.credentials import MEND, Access, read_access
from sandboxd.backends.kubernetes.talking.server import Refused, exchange, version_number
from sandboxd.backends.parts.findings import Finding, fine, gap
from sandboxd.backends.protocol import BoxOrder
from sandboxd.errors import SandboxdError
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec

MEND_ROLE = "give the daemon's account the role of docs/kubernetes.md"
_OLDEST = (1, 27)
_NETWORKING = "networking.k8s.io"
Rights = tuple[tuple[str, str, tuple[str, ...]], ...]
# Group, resource and verbs of what every daemon does in its namespace.
_RIGHTS: Rights = (
    ("", "pods", ("create", "get", "list", "watch", "patch", "delete")),
    ("", "secrets", ("create", "list", "delete")),
    ("", "events", ("list",)),
    (_NETWORKING, "networkpolicies", ("create", "update", "delete")),
)
_PREFETCHING = (("apps", "daemonsets", ("create", "list", "delete")),)
_FORWARDING = (("", "pods/portforward", ("create", "get")),)


def probe(settings: KubernetesSettings, *, templates: Mapping[str, BoxSpec]) -> list[Finding]:
    """Look at everything; what cannot be looked at because of an earlier gap is left out."""
    try:
        access = read_access(settings.kubeconfig, settings.context)
    except SandboxdError as error:
        return [gap("credentials", error.detail.removesuffix(f": {MEND}"), MEND, vital=True)]
    try:
        return list(_cluster(access, settings, templates))
    except (SandboxdError, Refused) as error:
        mend = "see that it is up, and that the credentials name it and are not expired"
        return [gap("cluster", error.detail, mend, vital=True)]
    finally:
        access.api.close()


def _cluster(
    access: Access, settings: KubernetesSettings, templates: Mapping[str, BoxSpec]
) -> Iterator[Finding]:
    namespace = settings.namespace or access.namespace
    yield _version(access)
    missing = _missing_rights(access, namespace, _rights(access, settings))
    if missing:
        detail = f"in namespace {namespace} our account may not {', '.join(missing)}"
        yield gap("rights", detail, MEND_ROLE, vital=True)
    else:
        yield fine("rights", f"all that is needed in namespace {namespace}")
    yield _guest_image(settings)
    yield _runtimes(access)
    yield _network(settings)
    if "create pods" not in missing:
        for name, spec in templates.items():
            yield _template(access, settings, namespace, name=name, spec=spec)


def _version(access: Access) -> Finding:
    said = str(exchange(access, "GET", "/version").get("gitVersion") or "")
    number = version_number(said)
    at = f"{said or 'unknown version'} at {access.api.configuration.host}"
    if number is None or number >= _OLDEST:
        return fine("cluster", at)
    return gap("cluster", f"{at}, older than what is supported", "use Kubernetes 1.27 or newer")


def _forwards(access: Access, settings: KubernetesSettings) -> bool:
    return settings.guest == "forward" or (settings.guest == "auto" and not access.inside)


def _rights(access: Access, settings: KubernetesSettings) -> Rights:
    return (
        *_RIGHTS,
        *(_FORWARDING if _forwards(access, settings) else ()),
        *(_PREFETCHING if settings.prefetch_images else ()),
    )


def _missing_rights(access: Access, namespace: str, wanted: Rights) -> list[str]:
    return [
        f"{verb} {resource}"
        for group, resource, verbs in wanted
        for verb in verbs
        if not _may(access, namespace, group=group, resource=resource, verb=verb)
    ]


def _may(access: Access, namespace: str, *, group: str, resource: str, verb: str) -> bool:
    resource, _, part = resource.partition("/")
    asked = {"namespace": namespace, "group": group, "resource": resource, "verb": verb}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**asked, "subresource": part}},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = exchange(access, "POST", path, body=body)
    return bool((answer.get("status") or {}).get("allowed"))


def _guest_image(settings: KubernetesSettings) -> Finding:
    image = settings.guest_image
    if "@sha256:" in image:
        return fine("guest image", image)
    mend = "pin it by its digest, so that no pod gets another guest than this daemon's"
    return gap("guest image", f"{image} can come to mean another image", mend)


def _runtimes(access: Access) -> Finding:
    try:
        found = exchange(access, "GET", "/apis/node.k8s.io/v1/runtimeclasses").get("items") or ()
    except Refused:
        return gap("runtimes", "runtime classes may not be listed", MEND_ROLE)
    names = ", ".join(sorted(str(each["metadata"]["name"]) for each in found))
    return fine("runtimes", names or "only the cluster's default")


def _network(settings: KubernetesSettings) -> Finding:
    match settings.network_policy:
        case "enforced":
            return fine("network", "policies are enforced, as the configuration says")
        case "none":
            mend = "a network plugin that enforces policies, and `network_policy` left out"
            return gap("network", "policies are not enforced, as the configuration says", mend)
        case "probe":
            return fine("network", "two pods find out at each start whether policies are enforced")


def _template(
    access: Access, settings: KubernetesSettings, namespace: str, *, name: str, spec: BoxSpec
) -> Finding:
    """Whether the server would take its pod. Nothing is made."""
    order = BoxOrder(box_id=new_id("box"), spec=spec, labels={})
    plan = PodPlan(
        order=order,
        installation=settings.installation,
        tag=settings.tag,
        guest_image=settings.guest_image,
        token="",
        cpu_request=settings.cpu_request,
        memory_request=settings.memory_request,
    )
    try:
        exchange(access, "POST", pods_path(namespace), body=pod_body(plan), query={"dryRun": "All"})
    except Refused as refusal:
        mend = f"mend `templates.{name}`; its pods have `templates.{name}.kubernetes` besides"
        return gap(f"template {name}", refusal.detail, mend)
    return fine(f"template {name}", "the cluster would take its pods")
