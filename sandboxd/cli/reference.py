"""`docs/cli.md`, written from the parser so that the two cannot drift."""

from __future__ import annotations

import argparse

from sandboxd.cli.parser import VERBS, build_parser

_HEAD = """\
# Command line

One program, `sandboxd`, or `python -m sandboxd`. This page is written from the parser
(`make docs`), and a test compares the two.

Errors are one line on standard error, `sandboxd: …`, that names the mend.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | the daemon refused, something failed, or not all was done |
| 2 | wrong arguments, or a configuration that cannot be used |
| 125 | `exec`, `shell`, `kernel`, `notebook`: what ran inside has no end that can be told |
| 130 | Ctrl-C |
| 141 | nobody reads the output any more |

`exec` exits with the command's `status`: its exit code, 128 + the signal that ended it, 124 at its
deadline, 127 or 126 where it could not be started, 137 where it was killed or ran out of memory.

`notebook run` exits with 0 if every cell was well, or its errors were allowed (`--allow-errors`; a
cell tagged `raises-exception`), and with 1 if one raised, timed out or took its kernel along.
However it ends, by Ctrl-C (130) or a fault of ours (125) too, the file has what was shown by then.
`kernel` exits with 0, and from a pipe with 1 at the first cell that failed.
"""


def cli_reference() -> str:
    """The page, as Markdown."""
    parser = build_parser()
    parts = [_HEAD]
    for verb in VERBS:
        inner = _subparser(parser, verb.name)
        parts.append(f"## sandboxd {verb.name}\n\n{verb.line}\n\n```text\n{_usage(inner)}\n```\n")
        if rows := _rows(inner):
            parts.append("| argument | meaning |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _subparser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    for action in parser._actions:  # noqa: SLF001 - argparse offers no other way to them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            found: argparse.ArgumentParser = action.choices[name]
            return found
    raise LookupError(name)


def _usage(parser: argparse.ArgumentParser) -> str:
    # Not argparse's own, which breaks lines by the terminal's width and by Python's version.
    words = [parser.prog]
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._HelpAction):  # noqa: SLF001
            continue
        words.append(_word(action))
    return parser.usage or " ".join(words)


def _word(action: argparse.Action) -> str:
    name = _metavar(action)
    if not action.option_strings:
        return {"*": f"[{name} …]", "+": f"{name} …", "?": f"[{name}]"}.get(str(action.nargs), name)
    flag = action.option_strings[-1]
    return f"[{flag}]" if action.nargs == 0 else f"[{flag} {name}]"


def _rows(parser: argparse.ArgumentParser) -> list[str]:
    rows = []
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._HelpAction):  # noqa: SLF001
            continue
        names = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{_metavar(action)}`"
        takes_value = action.option_strings and action.nargs != 0
        value = " `" + _metavar(action).replace("|", "\\|") + "`" if takes_value else ""
        rows.append(f"| {names}{value} | {action.help or _MEANINGS[action.dest]} |")
    return rows


_MEANINGS = {
    "label": "a label, as NAME=VALUE; may be given again",
    "env": "an environment variable, as NAME=VALUE; may be given again",
    "id": "the sandbox",
    "ids": "the sandboxes",
    "template": "the template to lease",
}


def _metavar(action: argparse.Action) -> str:
    if action.choices:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


if __name__ == "__main__":
    print(cli_reference(), end="")
