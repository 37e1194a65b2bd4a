"""Every verb with its arguments. Imports argparse alone; `docs/cli.md` is written from here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandboxd import __version__

Parser = argparse.ArgumentParser

_EPILOG = """\
Client verbs (ls, pools, images, prefetch, lease, exec, shell, kernel, notebook, mcp-servers, mcp,
cp, logs, release) reach the daemon at SANDBOXD_API_URL (default http://127.0.0.1:8420) with the
key in SANDBOXD_API_KEY.
Exit codes: 0 done · 1 refused or not all done · 2 wrong arguments or configuration · 130 Ctrl-C.
`exec` and `shell` exit with the command's own status, and with 125 where that cannot be told;
`notebook` and `kernel` with 1 where a cell failed, and with 125 where that cannot be told."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: name, line of help, arguments, `module:function`, and the extra that it needs."""

    name: str
    line: str
    arguments: Callable[[Parser], None]
    runs: str
    extra: str = ""


def build_parser() -> Parser:
    """The parser of the whole program; the verb is in `.verb`."""
    parser = Parser(
        prog="sandboxd",
        description="A sandbox for every rollout: the daemon, and the verbs to use it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sandboxd {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        verb.arguments(verbs.add_parser(verb.name, help=verb.line, description=verb.line))
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a call; leaves the program with 2 where they are wrong.

    What follows the first `--` of an `exec` or a `shell` is the command's own, whatever it looks
    like: argparse treats it differently from one version to the next.
    """
    parser = build_parser()
    if not argv or argv[0] not in {"exec", "shell"} or "--" not in argv:
        return parser.parse_args(argv)
    border = list(argv).index("--")
    args = parser.parse_args(argv[:border])
    args.cmd += argv[border + 1 :]
    return args


def find_verb(name: str) -> Verb:
    """The verb of that name, which the parser has let pass."""
    return next(verb for verb in VERBS if verb.name == name)


def _config(parser: Parser) -> None:
    parser.add_argument("--config", metavar="FILE", help="configuration (TOML; or SANDBOXD_CONFIG)")


def _state(parser: Parser) -> None:
    _config(parser)
    parser.add_argument("--state-dir", metavar="DIR", help="where leases are stored")
    parser.add_argument("--backend", metavar="KIND", help="local, docker, kubernetes or fake")


def _output(parser: Parser) -> None:
    parser.add_argument(
        "-o", "--output", choices=["text", "json"], default="text", help="form of the output"
    )


def _serve(parser: Parser) -> None:
    _state(parser)
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8420; 0: any)")
    parser.add_argument(
        "--ephemeral",
        action="store_true",
        help="end every sandbox at exit; state in a folder of its own, removed then",
    )


def _demo(parser: Parser) -> None:
    parser.add_argument(
        "--backend",
        choices=["auto", "local", "docker", "fake"],
        default="auto",
        help="which backend to use (default: the first that works)",
    )
    parser.add_argument(
        "--kernel", action="store_true", help="each problem as cells of a kernel, not as a command"
    )
    parser.add_argument("--concurrency", type=_positive, metavar="N", help="rollouts at a time")
    parser.add_argument("--limit", type=_positive, metavar="N", help="problems to run (of 164)")


def _doctor(parser: Parser) -> None:
    _state(parser)
    _output(parser)


def _check_config(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="the file (or --config)")
    _config(parser)
    _output(parser)


def _openapi(parser: Parser) -> None:
    parser.add_argument("--indent", type=int, default=2, metavar="N", help="spaces (default 2)")


def _seccomp_profile(parser: Parser) -> None:
    parser.add_argument(
        "--machine",
        choices=("amd64", "arm64"),
        default="amd64",
        help="the nodes' architecture (default amd64)",
    )


def _sweep(parser: Parser) -> None:
    _state(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument(
        "--all", action="store_true", help="end and remove what is leased and warm too"
    )
    parser.add_argument(
        "--stop-deployment",
        metavar="NAME",
        help="in a cluster: first bring the daemon's own deployment down, and wait for its end; "
        "a state folder that is missing is made",
    )
    _output(parser)


def _ls(parser: Parser) -> None:
    parser.add_argument("--run", metavar="RUN", help="only those of this run")
    parser.add_argument("--label", action="append", type=_pair, metavar="K=V", default=[])
    parser.add_argument("--state", metavar="STATE", help="queued, making, leased, ending or ended")
    parser.add_argument("-q", "--quiet", action="store_true", help="ids alone")
    _output(parser)


def _lease(parser: Parser) -> None:
    parser.add_argument("template", metavar="TEMPLATE")
    parser.add_argument("--image", help="another image than the template's (a cold lease)")
    parser.add_argument("--env", action="append", type=_pair, metavar="K=V", default=[])
    parser.add_argument("--label", action="append", type=_pair, metavar="K=V", default=[])
    parser.add_argument("--workdir", metavar="DIR", help="where commands start")
    parser.add_argument(
        "--network",
        type=_network,
        metavar="NET",
        help="none, internet, or allow=HOST,*.DOMAIN:443,… (default: the template's)",
    )
    parser.add_argument(
        "--forward",
        action="append",
        type=_forward,
        metavar="PORT=URL",
        default=[],
        help="a port inside that leads to one http://, https:// or tcp:// address outside",
    )
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="hard life in seconds")
    parser.add_argument("--grading", type=_seconds, metavar="S", help="life after that, to grade")
    parser.add_argument("--idle-timeout", type=_seconds, metavar="S", help="0 never ends it")
    parser.add_argument(
        "--wait", type=_seconds, metavar="S", default=60.0, help="how long to queue (default 60)"
    )
    parser.add_argument("--run", metavar="RUN", help="the run it belongs to")
    _output(parser)


def _exec(parser: Parser) -> None:
    parser.usage = "sandboxd exec [options] ID -- CMD…"
    parser.add_argument("id", metavar="ID")
    parser.add_argument("cmd", nargs="*", metavar="CMD", help="argv; use sh -c for shell text")
    parser.add_argument("--env", action="append", type=_pair, metavar="K=V", default=[])
    parser.add_argument("--cwd", metavar="DIR", help="where it starts")
    parser.add_argument("--user", help="whom it runs as")
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="deadline in seconds")
    parser.add_argument("-n", "--no-stdin", action="store_true", help="give it no input")


def _shell(parser: Parser) -> None:
    parser.usage = "sandboxd shell [options] ID [-- CMD…]"
    parser.epilog = "Enter, ~, . leaves it running; ~~ after Enter types one ~."
    parser.add_argument("id", metavar="ID")
    parser.add_argument("cmd", nargs="*", metavar="CMD", help="instead of bash, or sh")
    parser.add_argument("--attach", metavar="EXEC", help="come back to one that was left")
    parser.add_argument("--env", action="append", type=_pair, metavar="K=V", default=[])
    parser.add_argument("--cwd", metavar="DIR", help="where it starts")
    parser.add_argument("--user", help="whom it runs as")


def _notebook(parser: Parser) -> None:
    parser.add_argument("act", choices=["run"], metavar="run", help="execute its cells in order")
    parser.add_argument("file", metavar="FILE", help="the notebook, or - for stdin")
    parser.add_argument(
        "--template", metavar="TEMPLATE", default="python", help="of the sandbox (default python)"
    )
    parser.add_argument("--spec", metavar="NAME", help="the kernelspec (default: the notebook's)")
    parser.add_argument(
        "--output", metavar="FILE", help="where to write, or - (default: FILE.out.ipynb beside it)"
    )
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="deadline of each cell")
    parser.add_argument(
        "--allow-errors", action="store_true", help="go on after a cell that failed"
    )


def _kernel(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID")
    parser.add_argument(
        "--spec", metavar="NAME", default="python3", help="the kernelspec (default python3)"
    )
    parser.add_argument("--attach", metavar="KERNEL", help="use one that runs; it lives on")
    parser.add_argument("--env", action="append", type=_pair, metavar="K=V", default=[])
    parser.add_argument("--cwd", metavar="DIR", help="where it starts")


def _top(parser: Parser) -> None:
    parser.add_argument("--every", type=_seconds, metavar="S", default=2.0, help="default 2")
    _output(parser)


def _cp(parser: Parser) -> None:
    parser.add_argument("source", metavar="SRC", help="a path here, ID:PATH, or - for stdin")
    parser.add_argument("target", metavar="DST", help="a path here, ID:PATH, or - for stdout")


def _prefetch(parser: Parser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="as a template names it")
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="how long to wait at most")
    _output(parser)


def _mcp_servers(parser: Parser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="sandboxes; none: the shared servers")
    _output(parser)


def _nothing(parser: Parser) -> None:
    """It takes no arguments."""


def _logs(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID")
    _output(parser)


def _release(parser: Parser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--run", metavar="RUN", help="all sandboxes of this run")
    _output(parser)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        msg = f"{text!r} is not NAME=VALUE"
        raise argparse.ArgumentTypeError(msg)
    return name, value


def _network(text: str) -> str | dict[str, list[str]]:
    if text in {"none", "internet"}:
        return text
    kind, _, hosts = text.partition("=")
    allowed = [host.strip() for host in hosts.split(",")]
    if kind != "allow" or not all(allowed):
        msg = f"{text!r} is not none, internet or allow=HOST,…"
        raise argparse.ArgumentTypeError(msg)
    return {"allow": allowed}


def _forward(text: str) -> tuple[int, str]:
    port, url = _pair(text)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536 and url):
        msg = f"{text!r} is not PORT=URL"
        raise argparse.ArgumentTypeError(msg)
    return int(port), url


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 10_000):
        msg = f"{text!r} is no number from 1 to 10000"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        msg = f"{text!r} is no number of seconds"
        raise argparse.ArgumentTypeError(msg)
    return seconds


_DAEMON = "daemon"
VERBS = (
    Verb("serve", "Run the daemon.", _serve, "sandboxd.cli.serve:serve", _DAEMON),
    Verb(
        "demo",
        "Run a real batch of rollouts on this machine, with no set-up.",
        _demo,
        "sandboxd.demo:run_demo",
        "daemon,demo",
    ),
    Verb(
        "doctor",
        "Say what this machine can do, and the mend of each gap.",
        _doctor,
        "sandboxd.cli.doctor:doctor",
        _DAEMON,
    ),
    Verb(
        "check-config",
        "Check a configuration file.",
        _check_config,
        "sandboxd.cli.serve:check_config",
        _DAEMON,
    ),
    Verb(
        "openapi", "Print the API's description.", _openapi, "sandboxd.cli.serve:openapi", _DAEMON
    ),
    Verb(
        "seccomp-profile",
        "Print the filter of system calls, for nodes of a cluster.",
        _seccomp_profile,
        "sandboxd.cli.serve:seccomp_profile",
        _DAEMON,
    ),
    Verb(
        "sweep",
        "Remove what is ours and orphaned.",
        _sweep,
        "sandboxd.cli.sweep:sweep",
        _DAEMON,
    ),
    Verb("pools", "List the pools.", _output, "sandboxd.cli.listing:pools"),
    Verb("images", "List the images of sandboxes.", _output, "sandboxd.cli.images:images"),
    Verb(
        "prefetch",
        "Have images ready before their first sandbox.",
        _prefetch,
        "sandboxd.cli.images:prefetch",
    ),
    Verb("ls", "List sandboxes.", _ls, "sandboxd.cli.listing:ls"),
    Verb("top", "Show what the sandboxes use.", _top, "sandboxd.cli.top:top"),
    Verb("lease", "Lease a sandbox and print its id.", _lease, "sandboxd.cli.leasing:lease"),
    Verb("exec", "Run a command in a sandbox.", _exec, "sandboxd.cli.inside.execute:execute"),
    Verb("shell", "Open a terminal in a sandbox.", _shell, "sandboxd.cli.inside.shell:shell"),
    Verb(
        "kernel",
        "Type cells for a kernel in a sandbox, or pipe them in (`# %%` begins another).",
        _kernel,
        "sandboxd.cli.inside.repl:kernel",
    ),
    Verb(
        "notebook",
        "Run a notebook in a sandbox of its own and write what it showed.",
        _notebook,
        "sandboxd.cli.inside.notebook:notebook",
    ),
    Verb(
        "mcp-servers",
        "List the MCP servers of sandboxes, or those that all share.",
        _mcp_servers,
        "sandboxd.cli.mcp.listing:mcp_servers",
    ),
    Verb(
        "mcp",
        "Offer sandboxes as tools to an MCP client, on standard input and output.",
        _nothing,
        "sandboxd.cli.mcp.listing:mcp",
    ),
    Verb("cp", "Copy files and folders in or out.", _cp, "sandboxd.cli.inside.copy:copy"),
    Verb("logs", "Say what happened to a sandbox.", _logs, "sandboxd.cli.listing:logs"),
    Verb("release", "Give sandboxes back.", _release, "sandboxd.cli.leasing:release"),
)
