"""Kernels that run before anybody leases their sandbox, as the lease finds them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.contract.columns import Column, below_of, column_of
from tests.contract.speaker import Speaker, eventually, problem
from tests.support.cells import Kernel, open_kernel

pytestmark = pytest.mark.timeout(120)

_NOISY = "print('noise', flush=True); import sys; print('noise', file=sys.stderr, flush=True)"
_ODD: dict[str, Any] = {
    "argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    "display_name": "Odd",
    "language": "odd",
}
_TEMPLATES = """
[templates.warm]
image = {image}
resources = {{memory_mb = 512, pids = 256}}
env = {{OVER = "template", KEPT = "template", PYTHONPATH = "/tmp/modules"}}
setup = ["mkdir /tmp/modules", {noisy}]
kernels = ["python3", "python3"]
kernel_preload = ["decimal", "noisy", "xml.dom"]
pool = {{ready = 1, max = 8}}

[templates.plain]
image = {image}
resources = {{memory_mb = 512, pids = 256}}
env = {{OVER = "template"}}
pool = {{ready = 1, max = 8}}

[templates.odd]
image = {image}
resources = {{memory_mb = 512, pids = 256}}
setup = ["mkdir -p /usr/local/share/jupyter/kernels/odd", {odd}]
kernels = ["odd"]
pool = {{ready = 0, max = 4}}

[templates.unimportable]
image = {image}
kernels = ["python3"]
kernel_preload = ["json", "no_such_module.at_all"]
pool = {{ready = 0, max = 4}}

[templates.unknown]
image = {image}
kernels = ["no-such-kernel"]
pool = {{ready = 0, max = 4}}

[templates.ending]
image = {image}
setup = [
  "mkdir -p /usr/local/share/jupyter/kernels/ending",
  {ending},
]
kernels = ["ending"]
pool = {{ready = 0, max = 4}}
"""


def _write(path: str, text: str) -> str:
    return json.dumps(f"cat > {path} <<'END'\n{text}\nEND\n")


def _config(column: Column) -> str:
    spec = "/usr/local/share/jupyter/kernels/{}/kernel.json"
    ending = {**_ODD, "argv": ["sh", "-c", "echo cannot be >&2; exit 3"]}
    odd = _ODD if column.below else {**_ODD, "argv": [sys.executable, *_ODD["argv"][1:]]}
    return column.table + _TEMPLATES.format(
        image=json.dumps(column.image),
        noisy=_write("/tmp/modules/noisy.py", _NOISY),
        odd=_write(spec.format("odd"), json.dumps(odd)),
        ending=_write(spec.format("ending"), json.dumps(ending)),
    )


@pytest.fixture(scope="module")
def settings(backend: str, request: pytest.FixtureRequest) -> str:
    return _config(column_of(below_of(backend, request)))


@contextmanager
def leased(http: httpx.Client, template: str = "warm", **fields: Any) -> Iterator[Speaker]:
    response = http.post("/v1/sandboxes", json={"template": template, **fields}, timeout=120)
    assert response.status_code == 201, response.text
    path = f"/v1/sandboxes/{response.json()['id']}"
    yield Speaker(http, path)
    http.delete(path)


def listed(sandbox: Speaker) -> list[dict[str, Any]]:
    response = sandbox.get("/kernels")
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["kernels"]
    return found


def said(kernel: Kernel, code: str) -> str:
    return kernel.ok(code).strip()


def warmed(kernel: Kernel) -> bool:
    return said(kernel, "import sys; print('noisy' in sys.modules)") == "True"


def test_a_lease_finds_a_kernel_that_looks_as_if_nothing_had_been_done_in_it(
    http: httpx.Client,
) -> None:
    with leased(http) as sandbox:
        before = listed(sandbox)
        assert {(k["spec"], k["state"], k["execution_count"]) for k in before} == {
            ("python3", "idle", 0)
        }
        kernel = open_kernel(sandbox)
        assert kernel.kernel_id in {k["kernel_id"] for k in before}
        first = kernel.run("sorted(name for name in globals() if name[0] != '_')")
        assert first["execution_count"] == 1
        assert [each["output_type"] for each in first["outputs"]] == ["execute_result"]
        assert first["text"] == "['In', 'Out', 'exit', 'get_ipython', 'open', 'quit']"
        assert kernel.run("len(In), len(Out)")["text"] == "(3, 1)"
        assert said(kernel, "import os; print(os.getcwd(), os.environ['OVER'])") == (
            "/workspace template"
        )
        assert sandbox.get("/execs").json()["execs"] == []


def test_what_the_template_preloads_is_there_and_its_noise_is_not(http: httpx.Client) -> None:
    with leased(http) as sandbox:
        kernel = open_kernel(sandbox)
        code = "import sys; print([n in sys.modules for n in ('decimal', 'noisy', 'xml.dom')])"
        cell = kernel.run(code)
        assert (cell["text"], cell["stderr"]) == ("[True, True, True]\n", "")
        assert kernel.run("import noisy")["text"] == ""
        log = [json.loads(line) for line in sandbox.get("/logs").text.splitlines()]
        assert [line["spec"] for line in log if line["event"] == "kernel"] == ["python3"] * 2


def test_each_that_is_asked_for_is_another_until_there_are_no_more(http: httpx.Client) -> None:
    with leased(http) as sandbox:
        kernels = [open_kernel(sandbox) for _ in range(3)]
        assert len({kernel.kernel_id for kernel in kernels}) == 3
        assert [warmed(kernel) for kernel in kernels] == [True, True, False]
        assert len(listed(sandbox)) == 3


def test_a_caller_may_say_what_it_is_called_and_attaches_by_that(http: httpx.Client) -> None:
    with leased(http) as sandbox:
        kernel = open_kernel(sandbox, kernel_id="mine", env={"OWN": "1"})
        assert warmed(kernel)
        kernel.ok("x = 5")
        assert said(open_kernel(sandbox, kernel_id="mine"), "print(x)") == "5"
        assert len(listed(sandbox)) == 2
        kernel.call("restart")
        assert said(kernel, "import os; print(os.environ['OWN'], 'x' in globals())") == "1 False"


def test_one_that_was_never_asked_for_runs_cells_by_its_listed_id(http: httpx.Client) -> None:
    with leased(http, env={"OVER": "lease"}) as sandbox:
        kernel = Kernel(sandbox, listed(sandbox)[0]["kernel_id"])
        assert said(kernel, "import os; print(os.environ['OVER'])") == "lease"
        assert open_kernel(sandbox).kernel_id != kernel.kernel_id


def test_env_secrets_and_workdir_of_the_lease_and_of_the_kernel_are_there_before_its_first_cell(
    http: httpx.Client,
) -> None:
    lease: dict[str, Any] = {
        "env": {"OVER": "lease", "NEW": "quote ' \" \\ €"},
        "secrets": {"KEY": "hidden"},
        "workdir": "/tmp/its own",
    }
    with leased(http, **lease) as sandbox:
        kernel = open_kernel(sandbox, env={"OWN": "kernel"})
        names = ["OVER", "KEPT", "NEW", "KEY", "OWN"]
        cell = kernel.run(f"import os; [os.environ[n] for n in {names}], os.getcwd()")
        assert cell["execution_count"] == 1
        values = ["lease", "template", "quote ' \" \\ €", "hidden", "kernel"]
        assert cell["text"] == repr((values, "/tmp/its own"))
        assert said(kernel, "!echo $KEY $OWN; pwd").split() == [
            "hidden",
            "kernel",
            "/tmp/its",
            "own",
        ]
        assert warmed(kernel)
        there = open_kernel(sandbox, cwd="/usr")
        assert said(there, "import os; print(os.getcwd(), os.environ['PWD'])") == "/usr /usr"
        assert warmed(there)
        shown = [sandbox.get(rest).text for rest in ("", "/kernels", "/logs")]
        assert not any("hidden" in text for text in shown)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("PYTHONPATH", "import sys; print('/tmp/value' in sys.path)"),
        ("PYTHONHASHSEED", "print(hash('x') == hash('x'))"),
        ("OMP_NUM_THREADS", "import os; print(os.environ['OMP_NUM_THREADS'] == '/tmp/value')"),
    ],
)
def test_a_variable_that_only_counts_at_the_start_makes_it_start_anew_with_it(
    http: httpx.Client, name: str, code: str
) -> None:
    value = "7" if name == "PYTHONHASHSEED" else "/tmp/value"
    with leased(http, env={name: value}) as sandbox:
        kernel = open_kernel(sandbox)
        assert said(kernel, code) == "True"
        assert said(kernel, "import os; print(os.environ['KEPT'])") == "template"
        assert not warmed(kernel)
        first = kernel.run(f"open('/proc/self/environ').read().count('{name}={value}\\0')")
        assert first["text"] == "1"


def test_a_directory_that_is_not_there_fails_as_it_does_for_any_kernel(
    http: httpx.Client,
) -> None:
    told = []
    for template in ("warm", "plain"):
        with leased(http, template) as sandbox:
            response = sandbox.post("/kernels", {"spec": "python3", "cwd": "/not/there"})
            told.append(problem(response, 502, "start_failed"))
    assert told[0]["fault"] == told[1]["fault"]
    assert told[0]["detail"] == told[1]["detail"]


def test_another_user_than_its_own_makes_it_start_anew(
    http: httpx.Client, can: dict[str, Any]
) -> None:
    if not can["other_users"]:
        pytest.skip("boxes here have one user alone")
    with leased(http, user="1000") as sandbox:
        kernel = open_kernel(sandbox)
        assert said(kernel, "import os; print(os.getuid())") == "1000"


def test_a_kernel_of_another_language_is_kept_as_it_is_or_started_anew(http: httpx.Client) -> None:
    with leased(http, "odd") as sandbox:
        kernel = Kernel(sandbox, listed(sandbox)[0]["kernel_id"])
        assert open_kernel(sandbox, "odd").kernel_id == kernel.kernel_id
        assert said(kernel, "import os; print(os.environ.get('NEW'))") == "None"
    with leased(http, "odd", env={"NEW": "1"}) as sandbox:
        assert said(open_kernel(sandbox, "odd"), "import os; print(os.environ.get('NEW'))") == "1"


def test_a_lease_may_ask_for_kernels_that_its_template_has_not(http: httpx.Client) -> None:
    with leased(http, "plain", kernels=["python3"], env={"OVER": "lease"}) as sandbox:
        (found,) = listed(sandbox)
        kernel = open_kernel(sandbox)
        assert kernel.kernel_id == found["kernel_id"]
        assert said(kernel, "import os; print(os.environ['OVER'])") == "lease"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"template": "plain", "kernels": ["no-such-kernel"]}, ["no-such-kernel"]),
        ({"template": "unknown"}, ["no-such-kernel"]),
        (
            {"template": "unimportable"},
            ["no_such_module.at_all", "No module named 'no_such_module'"],
        ),
        ({"template": "ending"}, ["ending", "cannot be"]),
    ],
)
def test_kernels_that_cannot_be_are_named_and_are_no_fault_of_the_agent(
    http: httpx.Client, fields: dict[str, Any], words: list[str]
) -> None:
    told = problem(http.post("/v1/sandboxes", json=fields, timeout=60), 502, "start_failed")
    assert (told["fault"], told["mask"]) == ("task", True), told
    assert all(word in told["detail"] for word in words), told


def test_one_that_was_killed_before_anybody_took_it_is_started_anew(http: httpx.Client) -> None:
    with leased(http, env={"OVER": "lease"}) as sandbox:
        before = listed(sandbox)
        sandbox.exec("kill -9 $(grep -l ipykernel_launcher /proc/[0-9]*/cmdline | cut -d/ -f3)")
        eventually(
            lambda: {k["state"] for k in listed(sandbox)} == {"dead"},
            within_s=10,
            what="they are seen to be dead",
        )
        kernel = open_kernel(sandbox)
        assert kernel.kernel_id in {k["kernel_id"] for k in before}
        assert said(kernel, "import os; print(os.environ['OVER'])") == "lease"


def test_grading_ends_kernels_whether_taken_or_not_and_a_scorer_may_start_another(
    http: httpx.Client,
) -> None:
    with leased(http) as sandbox:
        kernel = open_kernel(sandbox)
        kernel.ok("import subprocess; p = subprocess.Popen(['sleep', '1234'])")
        assert sandbox.post("/grading", {"timeout_s": 60}).status_code == 200
        eventually(
            lambda: {k["state"] for k in listed(sandbox)} == {"dead"},
            within_s=10,
            what="all kernels are dead",
        )
        problem(kernel.call("execute", code="1"), 409, "kernel_died")
        assert sandbox.processes("ipykernel") == sandbox.processes("sleep 1234") == []
        assert said(open_kernel(sandbox, kernel_id="scorer"), "print(1)") == "1"


def test_kernels_that_nobody_uses_are_no_use(http: httpx.Client) -> None:
    with leased(http, idle_timeout_s=1.5) as sandbox:
        open_kernel(sandbox).ok("1")
        eventually(
            lambda: sandbox.get().json()["state"] != "leased",
            within_s=15,
            what="it is over for want of use",
        )
        assert sandbox.get().json()["end"]["reason"] == "idle"
