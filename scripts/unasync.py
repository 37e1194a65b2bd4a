"""Generates the synchronous twins from their asynchronous sources, or checks that they are current.

`python scripts/unasync.py` writes them; `--check` writes nothing and exits 1 if one is stale. It
knows words, not Python: what differs by more than a word lives in `_runtime/`, written by hand.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_HEADER = """\
# Generated from {source} by scripts/unasync.py.
# Edit the source, then run the script.
"""


@dataclass(slots=True)
class Twin:
    """One set of sources that share their substitutions, and which of those were ever used."""

    files: dict[Path, Path]  # source → generated, relative to the root
    substitutions: list[tuple[str, str]]  # regular expression → replacement, in order
    used: set[str] = field(default_factory=set)

    def translate(self, source: str) -> str:
        """The synchronous text of an asynchronous one."""
        for pattern, replacement in self.substitutions:
            source, count = re.subn(pattern, replacement, source, flags=re.MULTILINE)
            if count:
                self.used.add(pattern)
        return source

    @property
    def unused(self) -> list[str]:
        """Substitutions that no source needs: a rename that was forgotten here."""
        return [pattern for pattern, _ in self.substitutions if pattern not in self.used]


_KEYWORDS = [
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", r""),
    (r"\baclose\b", r"close"),
    (r"\bAsyncIterator\b", r"Iterator"),
]

_WIRE = Twin(
    files={Path("sandboxd/wire/http1.py"): Path("sandboxd/wire/http1_sync.py")},
    substitutions=[
        *_KEYWORDS,
        (r"\bAsync(Stream|Response|Connection)\b", r"\1"),
        (r"\b__aiter__\b", r"__iter__"),
        (r"\b__anext__\b", r"__next__"),
        (r"\bStopAsyncIteration\b", r"StopIteration"),
    ],
)

_CLIENT = Path("client/sandboxd_client")


def _client() -> Twin:
    below = ROOT / _CLIENT / "_async"
    names = sorted(path.relative_to(below) for path in below.rglob("*.py"))
    return Twin(
        files={_CLIENT / "_async" / name: _CLIENT / "_sync" / name for name in names},
        substitutions=[
            *_KEYWORDS,
            (r"\b__aenter__\b", r"__enter__"),
            (r"\b__aexit__\b", r"__exit__"),
            (r"\b__aiter__\b", r"__iter__"),
            (r"\b__anext__\b", r"__next__"),
            (r"\bStopAsyncIteration\b", r"StopIteration"),
            # What may be awaited or entered is, in the twin, simply there.
            (r"\bAsyncOpening\[(\w+)\]", r"\1"),
            (r"\bAsyncOpening\((.*)\)$", r"\1"),
            (r"^.*\bimport AsyncOpening$\n", r""),
            (r"\bAwaitable\[(\w+)\]", r"\1"),
            (r"\bAwaitable, ", r""),
            (r"\bAsyncIterable\b", r"Iterable"),
            (r"\baiter\(", r"iter("),
            (r"\bAsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
            (r"\bAbstractAsyncContextManager\b", r"AbstractContextManager"),
            (r"\bsandboxd\.wire\.http1\b", r"sandboxd.wire.http1_sync"),
            (r"\bsandboxd_client\._async\b", r"sandboxd_client._sync"),
            (r"\bimport aio as runtime\b", r"import sio as runtime"),
            (r"\bAsync([A-Z]\w+)", r"\1"),
            (r"\basynchronous\b", r"synchronous"),
        ],
    )


def main() -> int:
    """Write or check every twin. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    check: bool = parser.parse_args().check
    problems: list[str] = []
    for twin in (_WIRE, _client()):
        wanted = {target: _render(twin, source) for source, target in twin.files.items()}
        for target, text in wanted.items():
            if _is_current(ROOT / target, text):
                continue
            if check:
                problems.append(f"{target} is stale: run `python scripts/unasync.py`")
            else:
                (ROOT / target).parent.mkdir(parents=True, exist_ok=True)
                (ROOT / target).write_text(text, encoding="utf-8", newline="\n")
        problems += [f"substitution never used: {pattern}" for pattern in twin.unused]
        problems += _orphans(twin)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _render(twin: Twin, source: Path) -> str:
    text = twin.translate((ROOT / source).read_text(encoding="utf-8"))
    return _tidy(_HEADER.format(source=source.as_posix()) + text)


def _tidy(text: str) -> str:
    """As ruff would have it: lines join and imports change places where words are gone."""
    fix = ["check", "--select=I,C416,UP028", "--fix", "--unsafe-fixes"]
    for verb in (fix, ["format"]):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *verb,
            "--quiet",
            "--stdin-filename=client/x.py",
            "-",
        ]
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, check=True, cwd=ROOT
        )
        text = done.stdout.decode()
    return text


def _is_current(target: Path, text: str) -> bool:
    return target.exists() and target.read_text(encoding="utf-8") == text


def _orphans(twin: Twin) -> list[str]:
    """Generated files whose source is gone."""
    known = set(twin.files.values())
    folders = {target.parent for target in known if "_sync" in target.parts}
    found = {p.relative_to(ROOT) for folder in folders for p in (ROOT / folder).glob("*.py")}
    return [f"{path} has no source any more" for path in sorted(found - known)]


if __name__ == "__main__":
    sys.exit(main())
