"""A sandbox as the kernel gateway of Jupyter's own clients, by a URL alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import nbformat
import pytest

from tests.support.jupyter import Gateway, Kernel

pytestmark = pytest.mark.timeout(120)

PROGRAM = Path(__file__).with_name("gateway_program.py")


def test_nbclient_runs_a_notebook_unchanged_behind_the_gateway_client_of_jupyter_server(
    gateway: Gateway,
) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), gateway.url],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cells = nbformat.reads(done.stdout, as_version=4).cells
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    printed, value, rich, shown, _, raised, asked, long, last = (cell.outputs for cell in cells)
    assert [(each.name, each.text) for each in printed] == [
        ("stdout", "out 42\n"), ("stderr", "err\n"),
    ]  # fmt: skip
    assert value[0].data["text/plain"] == "42"
    assert [set(each.data) - {"text/plain"} for each in rich] == [{"text/html"}, {"image/png"}]
    assert shown[0].data["text/plain"] == "'second'"
    assert (raised[0].ename, raised[0].evalue) == ("ZeroDivisionError", "division by zero")
    assert asked[0].ename == "StdinNotImplementedError"
    assert "".join(each.text for each in long) == "".join(f"{i}\n" for i in range(2000))
    assert last[0].data["text/plain"] == "43"
    assert gateway.http.get(f"{gateway.url}/api/kernels").json() == []


def test_a_gateway_tells_its_version_and_the_kernelspecs_of_the_image(gateway: Gateway) -> None:
    http, url = gateway.http, gateway.url
    assert http.get(f"{url}/api").json()["version"].startswith("sandboxd ")
    specs = http.get(f"{url}/api/kernelspecs").json()
    assert specs["default"] == "python3"
    spec = specs["kernelspecs"]["python3"]
    assert spec["name"] == "python3" and spec["resources"] == {}
    assert spec["spec"]["language"] == "python"
    assert "{connection_file}" in spec["spec"]["argv"]
    assert http.get(f"{url}/api/kernelspecs/python3").json() == spec
    assert http.get(f"{url}/api/kernelspecs/none").status_code == 404


def test_a_kernel_is_told_of_as_jupyter_tells_of_its_own(kernel: Kernel) -> None:
    http, url = kernel.gateway.http, kernel.gateway.url
    model = kernel.model()
    assert set(model) == {"id", "name", "last_activity", "execution_state", "connections"}
    assert (model["id"], model["name"]) == (kernel.id, "python3")
    assert (model["execution_state"], model["connections"]) == ("idle", 0)
    assert http.get(f"{url}/api/kernels?1700000000").json() == [model]
    ours = http.get(f"{kernel.gateway.sandbox}/kernels/{kernel.id}").json()
    assert (ours["kernel_id"], ours["state"]) == (kernel.id, "idle")


def test_a_kernel_that_our_own_api_started_has_channels_too(gateway: Gateway) -> None:
    started = gateway.http.post(f"{gateway.sandbox}/kernels", json={"kernel_id": "mine"})
    assert started.status_code == 201, started.text
    kernel = Kernel(gateway, "mine")
    kernel.cell("x = 5")
    with kernel.client() as client:
        assert client.run("print(x)") == "5\n"


def test_a_kernel_that_is_running_already_is_taken_under_an_id_that_jupyter_server_takes(
    http: httpx.Client,
) -> None:
    with Gateway.lease(http, "warm") as gateway:
        (waiting,) = http.get(f"{gateway.url}/api/kernels").json()
        kernel = gateway.start()
        assert [part.isalnum() for part in kernel.id.split("-")] == [True] * 5
        (taken,) = http.get(f"{gateway.url}/api/kernels").json()
        assert (waiting["name"], taken["id"]) == ("python3", kernel.id)
        with kernel.client() as client:
            assert client.run("print(1)") == "1\n"
            counts = [said["content"].get("execution_count") for said in client.heard]
            assert [count for count in counts if count is not None] == [1, 1]  # input and reply


def test_a_kernel_may_be_asked_for_with_no_body_and_with_fields_that_mean_nothing_here(
    gateway: Gateway,
) -> None:
    http, url = gateway.http, f"{gateway.url}/api/kernels"
    assert http.post(url).status_code == 201
    body = {"name": "python3", "path": "a/b.ipynb", "env": {"KERNEL_X": "1"}}
    started = http.post(url, json=body)
    assert started.status_code == 201
    cell = Kernel(gateway, started.json()["id"]).cell("import os; print(os.environ['KERNEL_X'])")
    assert cell["stdout"] == "1\n"


def test_a_kernelspec_that_the_image_has_not_is_refused_by_name(gateway: Gateway) -> None:
    refused = gateway.http.post(f"{gateway.url}/api/kernels", json={"name": "cobol"})
    assert refused.status_code == 502
    told = refused.json()
    assert (told["code"], told["fault"]) == ("start_failed", "task")
    assert "cobol" in told["detail"]
    # What Jupyter's clients show of an error.
    assert (told["message"], told["reason"]) == (told["detail"], told["code"])


def test_without_an_upgrade_and_for_an_unknown_kernel_the_channels_say_so(kernel: Kernel) -> None:
    http = kernel.gateway.http
    assert http.get(f"{kernel.url}/channels").status_code == 426
    assert http.get(f"{kernel.gateway.url}/api/kernels/none").status_code == 404
    upgrade = {
        "connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    answer = http.get(f"{kernel.gateway.url}/api/kernels/none/channels", headers=upgrade)
    assert answer.status_code == 404


def test_a_token_of_another_sandbox_finds_no_kernel(kernel: Kernel, http: httpx.Client) -> None:
    with Gateway.lease(http) as other:
        assert http.get(f"{other.url}/api/kernels/{kernel.id}").status_code == 404


def test_a_token_in_a_url_survives_clients_that_lower_its_case_and_rename_its_scheme(
    gateway: Gateway,
) -> None:
    # As the gateway client makes the address of its WebSocket.
    assert gateway.url.lower().replace("http", "ws") == "ws" + gateway.url.removeprefix("http")
