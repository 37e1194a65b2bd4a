"""What stands beside the Helm chart's values and follows from them: their schema and their README.

A comment ahead of a key of helm/values.yaml is its line. What goes into the daemon's configuration
as it stands has the shape that the daemon itself checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sandboxd.settings.schema import SettingsFile

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm"
VALUES = CHART / "values.yaml"
SCHEMA = CHART / "values.schema.json"
README = CHART / "README.md"

Json = dict[str, Any]

_KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z]\w*):(?: .*)?\Z")
_DIGEST: Json = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
_NAME: Json = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$"}
_MAYBE_NAME: Json = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"}
_PART: Json = {"type": "number", "minimum": 0, "maximum": 1}
_TEXTS: Json = {"type": "array", "items": {"type": "string", "minLength": 1}}
_OBJECTS: Json = {"type": "array", "items": {"type": "object"}}
_WORDS: Json = {"type": "object", "additionalProperties": {"type": "string"}}


def _one_of(*words: str) -> Json:
    return {"type": "string", "enum": list(words)}


def _whole(least: int) -> Json:
    return {"type": "integer", "minimum": least}


def _daemons(model: str) -> Json:
    return {"$ref": f"#/$defs/{model}"}


# What a default alone does not tell of a value. All else has the type of its default.
_SHAPES: Mapping[str, Json] = {
    "fullnameOverride": {"anyOf": [_NAME, {"const": ""}]},
    "image.digest": _DIGEST,
    "image.pullPolicy": _one_of("IfNotPresent", "Always", "Never"),
    "guestImage.digest": _DIGEST,
    "imagePullSecrets": {
        "type": "array",
        "items": {"type": "object", "required": ["name"], "properties": {"name": _NAME}},
    },
    "auth.keys": {
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
                "value": {"type": "string", "minLength": 16},
                "quota": _daemons("QuotaTable"),
            },
        },
    },
    "auth.existingSecret": _MAYBE_NAME,
    "templates": {
        "type": "object",
        "propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
        "additionalProperties": {"anyOf": [_daemons("TemplateTable"), {"type": "null"}]},
    },
    "mcpServers": {
        "type": "object",
        "propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
        "additionalProperties": {"anyOf": [_daemons("SharedMcpServerTable"), {"type": "null"}]},
    },
    "limits": _daemons("LimitsTable"),
    "wayOut": _daemons("WayOutTable"),
    "log": _daemons("LogTable"),
    "compat": _daemons("CompatTable"),
    "sandboxes.namespace": _MAYBE_NAME,
    "sandboxes.networkPolicy": _one_of("probe", "enforced", "none"),
    "sandboxes.guest": _one_of("address", "forward"),
    "sandboxes.guestVolume": _one_of("auto", "copy", "image"),
    "sandboxes.seccompProfile": {"type": "string", "pattern": "^([^/].*)?$"},
    "sandboxes.cpuRequest": _PART,
    "sandboxes.memoryRequest": _PART,
    "sandboxes.starting": {**_whole(1), "maximum": 1000},
    "sandboxes.readyTimeoutSeconds": {"type": "number", "minimum": 1, "maximum": 3600},
    "sandboxes.unschedulableSeconds": {"type": "number", "minimum": 0, "maximum": 3600},
    "sandboxes.orphanSeconds": {"type": "number", "minimum": 1},
    "sandboxes.imagePullSecrets": _TEXTS,
    "sandboxes.allowImages": _TEXTS,
    "sandboxes.pod": _daemons("PodTable"),
    "sandboxes.priorityClass.name": _MAYBE_NAME,
    "sandboxes.priorityClass.value": {"type": "integer", "maximum": 1_000_000_000},
    "sandboxes.priorityClass.preemptionPolicy": _one_of("Never", "PreemptLowerPriority"),
    "sandboxes.resourceQuota": {
        "type": "object",
        "additionalProperties": {"type": ["string", "integer"]},
    },
    "sandboxes.podDisruptionBudget.minAvailable": _whole(0),
    "persistence.existingClaim": _MAYBE_NAME,
    "persistence.storageClass": _MAYBE_NAME,
    "persistence.size": {"type": "string", "pattern": "^[0-9]+(Mi|Gi|Ti)$"},
    "persistence.accessModes": {
        "type": "array",
        "minItems": 1,
        "items": _one_of("ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"),
    },
    "service.type": _one_of("ClusterIP", "NodePort", "LoadBalancer"),
    "service.port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "publicUrl": {"type": "string", "pattern": "^(https?://[^\\s/?#]+(/[^\\s?#]*)?)?$"},
    "ingress.tlsSecret": _MAYBE_NAME,
    "httpRoute.parentRefs": _OBJECTS,
    "networkPolicy.from": _OBJECTS,
    "serviceAccount.name": _MAYBE_NAME,
    "nodeSelector": _WORDS,
    "tolerations": _OBJECTS,
    "podAnnotations": _WORDS,
    "podLabels": _WORDS,
    "extraEnv": _OBJECTS,
    "extraVolumes": _OBJECTS,
    "extraVolumeMounts": _OBJECTS,
    "metrics.serviceMonitor.interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
    "metrics.serviceMonitor.labels": _WORDS,
    "metrics.prometheusRule.labels": _WORDS,
    "metrics.dashboard.labels": _WORDS,
    "service.annotations": _WORDS,
    "ingress.annotations": _WORDS,
    "persistence.annotations": _WORDS,
    "serviceAccount.annotations": _WORDS,
    "telemetry.otlpEndpoint": {"type": "string", "pattern": "^(https?://\\S+)?$"},
    "uninstall.timeoutSeconds": _whole(10),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One value. path: with dots; default: as the file has it."""

    path: str
    meaning: str
    default: Any


def read_lines() -> list[Line]:
    """Every value that has a meaning of its own, in the order of the file."""
    values = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    return list(_lines(values))


def _lines(values: Json) -> Iterator[Line]:
    above: list[str] = []
    comment = ""
    for text in VALUES.read_text(encoding="utf-8").splitlines():
        if text.lstrip().startswith("# "):
            comment = text.lstrip(" #").rstrip()
        elif found := _KEY.match(text):
            del above[len(found["indent"]) // 2 :]
            above.append(found["key"])
            if comment:
                yield Line(".".join(above), comment, _at(values, above))
            comment = ""
        else:
            comment = ""


def _at(values: Any, path: list[str]) -> Any:
    for key in path:
        values = values[key]
    return values


def schema_text() -> str:
    """helm/values.schema.json."""
    values = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    meanings = {line.path: line.meaning for line in read_lines()}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart sandboxd",
        **_table(values, "", meanings),
        "$defs": _daemon_shapes(),
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _table(values: Json, prefix: str, meanings: Mapping[str, str]) -> Json:
    found: Json = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if path in _SHAPES:
            shape = dict(_SHAPES[path])
        elif isinstance(value, dict) and value and path != "resources":
            shape = _table(value, f"{path}.", meanings)
        else:
            shape = {"type": _type_of(value)}
        # Beside a reference a description would be taken for all there is.
        found[key] = shape if "$ref" in shape else {**_described(meanings.get(path)), **shape}
    if not prefix:  # what Helm itself puts there
        found["global"] = {"type": "object"}
    return {"type": "object", "additionalProperties": False, "properties": found}


def _described(meaning: str | None) -> Json:
    return {"description": meaning} if meaning else {}


def _type_of(value: Any) -> str:
    kinds = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array"}
    return kinds.get(type(value), "object")


def _daemon_shapes() -> Json:
    """The tables of the daemon's configuration that values hold, as it checks them."""
    shapes: Json = SettingsFile.model_json_schema(ref_template="#/$defs/{model}")["$defs"]
    words = [_one_of("none", "internet"), shapes["NetworkTable"]]
    del shapes["NetworkTable"]["required"]
    shapes["NetworkTable"] = {"anyOf": words}
    wanted = {shape["$ref"].rpartition("/")[2] for shape in _references(dict(_SHAPES))}
    while (
        more := {
            shape["$ref"].rpartition("/")[2]
            for name in wanted
            for shape in _references(shapes[name])
        }
        - wanted
    ):
        wanted |= more
    return {name: _terse(shapes[name]) for name in sorted(wanted)}


def _references(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _terse(value: Any) -> Any:
    """Without what only repeats a name, or the daemon's own choice."""
    if isinstance(value, list):
        return [_terse(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return {"$ref": value["$ref"]}
    return {
        key: _terse(each)
        for key, each in value.items()
        if not (key in {"title", "default"} and not isinstance(each, dict))
    }


_README_HEAD = """\
# The Helm chart

{note}How to install, upgrade and take away: [operations](../docs/operations/install.md). Values are
checked by [their schema](values.schema.json); what is below `templates`, `mcpServers`, `limits`,
`wayOut`, `log` and `compat` is the daemon's own [configuration](../docs/configuration.md), key by
key.

| value | default | meaning |
| --- | --- | --- |
"""


def readme_text(note: str) -> str:
    """helm/README.md. note: that it is generated."""
    rows = [
        f"| `{line.path}` | {_shown(line.default)} | {line.meaning.replace('|', chr(92) + '|')} |\n"
        for line in read_lines()
    ]
    return _README_HEAD.format(note=note) + "".join(rows)


def _shown(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"
