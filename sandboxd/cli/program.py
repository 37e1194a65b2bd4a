"""The program: parse, load the verb's room, run it, turn what goes wrong into a line and a code."""

from __future__ import annotations

import importlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

from sandboxd.cli.faults import CliError, ExitCode, say
from sandboxd.cli.parser import Verb, find_verb, parse

# Verbs that exit with 1, or with more, for what ran inside.
_TELL_APART = {"exec", "shell", "kernel", "notebook"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code. Never raises but for what argparse exits with."""
    args = parse(sys.argv[1:] if argv is None else list(argv))
    verb = find_verb(args.verb)
    try:
        code = _load(verb)(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _give_up_stdout()
        return ExitCode.PIPE_CLOSED
    except ModuleNotFoundError as error:
        return _missing(error, verb)
    except Exception as error:  # noqa: BLE001 - what nobody foresaw is raised again
        return _failed(error, verb)
    return code


def _load(verb: Verb) -> Callable[[Namespace], int]:
    module, _, name = verb.runs.partition(":")
    run: Callable[[Namespace], int] = getattr(importlib.import_module(module), name)
    return run


def _failed(error: Exception, verb: Verb) -> int:
    """Say what a known failure says; what nobody foresaw goes on as it is."""
    if isinstance(error, CliError):
        say(error.text)
        return error.code
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}
    if "sandboxd.settings.problems.SettingsError" in names:
        say(str(error))
        return ExitCode.USAGE
    text = _known_failure(error, names)
    if text is None:
        raise error
    say(text)
    return ExitCode.OURS if verb.name in _TELL_APART else ExitCode.FAILED


def _known_failure(error: Exception, names: set[str]) -> str | None:
    """The sentence of an error of the house, the SDK or the system. Loads neither of them.

    names: of the error's class and of those above it.
    """
    if "sandboxd.errors.SandboxdError" in names:
        return str(getattr(error, "detail", error))
    if any(
        name.startswith("sandboxd_client.") and name.endswith(".SandboxdError") for name in names
    ):
        from sandboxd.cli.client import sentence

        return sentence(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}"
    return None


def _missing(error: ModuleNotFoundError, verb: Verb) -> int:
    """A missing part of the house is a bug and raised; a missing extra is a line with its mend."""
    name = error.name or ""
    if name.partition(".")[0] == "sandboxd":
        raise error
    extra = f"[{verb.extra}]" if verb.extra else ""
    say(f"`{verb.name}` needs `{name}`, which is not installed; run: pip install 'sandboxd{extra}'")
    return ExitCode.FAILED


def _give_up_stdout() -> None:
    # Python flushes stdout once more when it exits, and would report the broken pipe then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
