"""Write the generated pages: API, configuration, command line, the facts in `docs/errors/`, and the
Helm chart's values.

`--check` writes nothing and fails where a page is not what it would write, so that none drifts
from the code.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sandboxd.wire.codes import CODES, CodeFacts, ErrorCode
from scripts import bug_cases, chart_values

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ERRORS = DOCS / "errors"
OPENAPI_TIMEOUT_S = 60

_NOTE = "<!-- Written by scripts/gen_docs.py (`make docs`). Do not edit by hand. -->\n\n"
_METHODS = ("get", "put", "post", "delete", "patch", "options", "head")
_FACTS_LINE = re.compile(r"^(## `(?P<code>[a-z_]+)`\n\n)(?P<facts>\*.*\*)$", re.MULTILINE)


class NotYet(Exception):
    """The room that a page describes is not there."""


def row(cells: Iterable[str]) -> str:
    """One line of a table, with what would break it escaped."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(titles)
    return row(head) + row("---" for _ in head) + "".join(row(cells) for cells in rows)


# ------------------------------------------------------------------------------------ configuration


_CONFIGURATION_HEAD = """\
One TOML file, given by `--config` or `SANDBOXD_CONFIG`; variables stand above the file, flags above
both. Unknown keys are refused; `sandboxd check-config` tells what is wrong with a file. Durations
are seconds. `*` stands for a name of yours, `[]` for each entry of a list.

"""


def configuration_page() -> str:
    """The configuration reference, from the settings' own schema."""
    describe_settings = room("sandboxd.settings").describe_settings
    rows = [
        (
            f"`{line.key}`",
            line.type,
            f"`{line.default}`" if line.default else "unset",
            line.meaning,
            f"`{line.variable}`" if line.variable else "",
        )
        for line in describe_settings()
    ]
    return (
        "# Configuration reference\n\n"
        + _NOTE
        + _CONFIGURATION_HEAD
        + table(("key", "type", "default", "meaning", "variable"), rows)
    )


# ---------------------------------------------------------------------------------------------- cli


def cli_page() -> str:
    """The command line, verb by verb, from its parser."""
    page: str = room("sandboxd.cli.reference").cli_reference()
    return page


# ---------------------------------------------------------------------------------------------- api


_API_HEAD = """\
The same in OpenAPI's form: `GET /openapi.json`, or `sandboxd openapi`. Errors are
`application/problem+json` with a code from [the closed list](errors/README.md).
"""


def api_page() -> str:
    """The HTTP reference, from the daemon's own OpenAPI document."""
    document = openapi()
    parts = [
        "# API reference\n\n",
        _NOTE,
        _API_HEAD,
    ]
    for path, operations in document.get("paths", {}).items():
        for method in filter(operations.__contains__, _METHODS):
            parts += _operation(method, path, operations[method])
    parts.append("\n# Objects\n")
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        parts += _object(name, schema)
    return "".join(parts)


def openapi() -> dict[str, Any]:
    """What the daemon says of itself, in a process of its own: the page sees what users see."""
    room("sandboxd.api.app")
    answer = subprocess.run(
        [sys.executable, "-m", "sandboxd", "openapi"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=OPENAPI_TIMEOUT_S,
        check=False,
    )
    if answer.returncode != 0:
        raise SystemExit(f"`sandboxd openapi` failed:\n{answer.stderr}")
    document: dict[str, Any] = json.loads(answer.stdout)
    return document


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"\n## `{method.upper()} {path}`\n\n"
    said = operation.get("description") or operation.get("summary") or ""
    if said:
        yield said.strip() + "\n\n"
    parameters = operation.get("parameters", [])
    if parameters:
        yield table(
            ("parameter", "in", "type", "meaning"),
            (
                (
                    f"`{one['name']}`",
                    one["in"],
                    type_of(one.get("schema", {})),
                    one.get("description", ""),
                )
                for one in parameters
            ),
        )
        yield "\n"
    for content, media in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body: {type_of(media.get('schema', {}))} (`{content}`).\n\n"
    answers = [
        f"`{status}` {_bodies(answer)}".strip()
        for status, answer in operation.get("responses", {}).items()
    ]
    yield f"Answers: {' · '.join(answers)}.\n\nOperation `{operation.get('operationId', '')}`.\n"


def _bodies(answer: dict[str, Any]) -> str:
    kinds = {
        type_of(media.get("schema", {})) or f"`{content}`"
        for content, media in answer.get("content", {}).items()
    }
    return " or ".join(sorted(kinds)) or answer.get("description", "")


def _object(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"\n## {name}\n\n"
    if schema.get("description"):
        yield schema["description"].strip() + "\n\n"
    if "enum" in schema:
        yield "One of " + " · ".join(f"`{value}`" for value in schema["enum"]) + ".\n"
    needed = set(schema.get("required", ()))
    if schema.get("properties"):
        yield table(
            ("field", "type", "default", "meaning"),
            (
                (
                    f"`{field}`",
                    type_of(facts),
                    _default(field, facts, needed),
                    facts.get("description", ""),
                )
                for field, facts in schema["properties"].items()
            ),
        )


def _default(field: str, facts: dict[str, Any], needed: set[str]) -> str:
    if field in needed:
        return "required"
    return f"`{json.dumps(facts['default'])}`" if "default" in facts else ""


def type_of(schema: dict[str, Any]) -> str:
    """A schema in a few words; a named object links to its section."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    for many in ("anyOf", "oneOf", "allOf"):
        if many in schema:
            return " or ".join(dict.fromkeys(type_of(one) for one in schema[many]))
    if "const" in schema or "enum" in schema:
        return " or ".join(
            f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")])
        )
    kind = schema.get("type", "")
    if kind == "array":
        return f"array of {type_of(schema.get('items', {})) or 'anything'}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"table of {type_of(schema['additionalProperties']) or 'anything'}"
    return str(kind)


# ------------------------------------------------------------------------------------------- errors


def facts_line(facts: CodeFacts) -> str:
    """What stands below a code's heading on its page."""
    status = f"HTTP {facts.status}" if facts.status else "never a response of its own"
    promises = f"retry_safe {_yes(facts.retry_safe)} · mask {_yes(facts.mask)}"
    return f"*{status} · fault {facts.fault} · {promises}*"


def _yes(flag: bool) -> str:  # noqa: FBT001 - renders a flag
    return "yes" if flag else "no"


def family_pages() -> dict[Path, str]:
    """The hand-written pages, with the facts below each code's heading put right."""
    return {
        path: _FACTS_LINE.sub(_with_facts, path.read_text(encoding="utf-8"))
        for path in sorted(ERRORS.glob("*.md"))
        if path.name != "README.md"
    }


def _with_facts(match: re.Match[str]) -> str:
    code = match["code"]
    if code not in set(ErrorCode):
        raise SystemExit(f"docs/errors has a page for `{code}`, which is no code")
    return match[1] + facts_line(CODES[ErrorCode(code)])


_ERRORS_HEAD = """\
Every error, and every lease that ended, carries a code from this closed list, whose fault it was,
and two promises:

- `retry_safe` yes: the request certainly had no effect, so it may be sent again without an id.
- `mask` yes: leave this rollout out of the batch. It says nothing about the model, so scoring it
  would be a false zero.

Fault is `agent` (the model's own actions), `task` (image or setup), `infra` (ours), `client` (the
caller) or `unknown`. The table shows what a code means by itself; an error that knows more says so
in its own fields, and those count. A status of – means that the code stands only inside an Exec, a
Cell or an `end`.

"""


def errors_page() -> str:
    """The list of all codes, each linked to its place in a family's page."""
    places = {
        match["code"]: path.name
        for path, text in family_pages().items()
        for match in _FACTS_LINE.finditer(text)
    }
    rows = [
        (
            f"[`{code}`]({places[code]}#{code})" if code in places else f"`{code}`",
            str(facts.status or "–"),
            facts.fault,
            _yes(facts.retry_safe),
            _yes(facts.mask),
            facts.title,
        )
        for code, facts in CODES.items()
    ]
    return (
        "# Errors\n\n"
        + _NOTE
        + _ERRORS_HEAD
        + table(("code", "HTTP", "fault", "retry_safe", "mask", "in short"), rows)
    )


# -------------------------------------------------------------------------------------------- pages


def room(name: str) -> Any:
    """That module of ours; NotYet if it is not written."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "sandboxd":
            raise NotYet(name) from None
        raise


PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "configuration.md": configuration_page,
    DOCS / "cli.md": cli_page,
    DOCS / "api.md": api_page,
    ERRORS / "README.md": errors_page,
    DOCS / "bug-cases.md": lambda: bug_cases.page(_NOTE),
    chart_values.README: lambda: chart_values.readme_text(_NOTE),
    chart_values.SCHEMA: chart_values.schema_text,
}


def write_all() -> Iterator[tuple[Path, str]]:
    """Each generated page with its text."""
    yield from family_pages().items()
    for path, page in PAGES.items():
        try:
            yield path, page()
        except NotYet as missing:
            print(f"gen_docs: {path.relative_to(ROOT)} waits for {missing}", file=sys.stderr)


def drift() -> list[str]:
    """Where the pages on disk differ from what would be written, as diffs."""
    found = []
    for path, text in write_all():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old != text:
            name = str(path.relative_to(ROOT))
            lines = difflib.unified_diff(
                old.splitlines(), text.splitlines(), name, "as generated", lineterm="", n=0
            )
            found.append("\n".join(list(lines)[:20]))
    return found


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where a page has drifted"
    )
    if parser.parse_args().check:
        found = drift()
        print(
            "\n\n".join([*found, "run `make docs`"]) if found else "gen_docs: all pages are current"
        )
        return 1 if found else 0
    for path, text in write_all():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
