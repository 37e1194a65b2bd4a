"""Kernels as a caller over plain HTTP sees them, and kernelspecs that a test brings along."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import nbformat

from tests.contract.speaker import Speaker

CELL_FIELDS = {
    "cell_id", "state", "outcome", "execution_count", "text", "stdout", "stderr", "outputs",
    "late_outputs", "error", "started_at", "duration_s", "truncated", "late", "kernel_restarted",
    "fault", "mask",
}  # fmt: skip

_SPECS = "/usr/local/share/jupyter/kernels"
_LIAR = Path(__file__).with_name("lying_kernel.py")
_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a sandbox."""

    sandbox: Speaker
    kernel_id: str

    @property
    def path(self) -> str:
        """Below the sandbox."""
        return f"/kernels/{self.kernel_id}"

    def call(self, verb: str, **body: Any) -> httpx.Response:
        """POST one of its verbs."""
        url = f"{self.sandbox.path}{self.path}/{verb}"
        return self.sandbox.http.post(url, json=body or None, timeout=_WAIT_S)

    def run(self, code: str, **fields: Any) -> dict[str, Any]:
        """Run a cell to its end; the Cell, which is whole."""
        response = self.call("execute", code=code, **fields)
        assert response.status_code == 200, response.text
        cell: dict[str, Any] = response.json()
        assert set(cell) >= CELL_FIELDS
        assert cell["state"] == "ended"
        return cell

    def ok(self, code: str, **fields: Any) -> str:
        """Run a cell that ends well; its text."""
        cell = self.run(code, **fields)
        assert cell["outcome"] == "ok", cell
        text: str = cell["text"]
        return text

    def start(self, code: str, **fields: Any) -> str:
        """Hand in a cell without waiting; its id. One that has ended already is as good."""
        response = self.call("execute", code=code, detach=True, **fields)
        assert response.status_code in {200, 202}, response.text
        cell_id: str = response.json()["cell_id"]
        return cell_id

    def cell(self, cell_id: str, *, wait_s: float = 0) -> dict[str, Any]:
        """A cell as it is once it ended, or that time has passed."""
        url = f"{self.sandbox.path}{self.path}/cells/{cell_id}"
        response = self.sandbox.http.get(url, params={"wait_s": wait_s}, timeout=wait_s + 30)
        assert response.status_code == 200, response.text
        cell: dict[str, Any] = response.json()
        return cell

    def ended(self, cell_id: str, *, within_s: float = 20) -> dict[str, Any]:
        """The Cell of one that ends soon."""
        cell = self.cell(cell_id, wait_s=within_s)
        assert cell["state"] == "ended", cell
        return cell

    @contextmanager
    def stream(self, code: str, **fields: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """Run a cell and read its events as they come."""
        with self.sandbox.http.stream(
            "POST",
            f"{self.sandbox.path}{self.path}/execute",
            json={"code": code, **fields},
            headers={"Accept": "application/x-ndjson"},
            timeout=_WAIT_S,
        ) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "application/x-ndjson"
            yield (json.loads(line) for line in response.iter_lines())

    def events(self, cell_id: str, *, after: int = 0) -> list[dict[str, Any]]:
        """The events of a cell that has ended, or ends soon."""
        url = f"{self.sandbox.path}{self.path}/cells/{cell_id}/events"
        response = self.sandbox.http.get(url, params={"after": after}, timeout=_WAIT_S)
        assert response.status_code == 200, response.text
        return [json.loads(line) for line in response.text.splitlines()]

    def shown(self) -> dict[str, Any]:
        """The Kernel."""
        body: dict[str, Any] = self.sandbox.get(self.path).json()
        return body

    def running(self, cell_id: str) -> None:
        """Wait until a cell is what the kernel runs."""
        url = f"{self.sandbox.path}{self.path}/cells/{cell_id}/events"
        with self.sandbox.http.stream("GET", url, timeout=30) as response:
            first = json.loads(next(response.iter_lines()))
        assert first["type"] == "started", first


@contextmanager
def leased(http: httpx.Client, **body: Any) -> Iterator[Speaker]:
    """A sandbox of the template `python`, made to measure, for as long as the block runs."""
    answer = http.post("/v1/sandboxes", json={"template": "python", **body}, timeout=_WAIT_S)
    assert answer.status_code == 201, answer.text
    made = Speaker(http, f"/v1/sandboxes/{answer.json()['id']}")
    try:
        yield made
    finally:
        http.delete(made.path)


def open_kernel(sandbox: Speaker, spec: str = "python3", **fields: Any) -> Kernel:
    """Start a kernel."""
    url = f"{sandbox.path}/kernels"
    response = sandbox.http.post(url, json={"spec": spec, **fields}, timeout=_WAIT_S)
    assert response.status_code == 201, response.text
    return Kernel(sandbox, response.json()["kernel_id"])


def add_liar(sandbox: Speaker, name: str = "liar", *, mode: str = "signal", **env: str) -> None:
    """Put the kernel that misbehaves on order into a sandbox, as kernelspec `name`."""
    program = f"/opt/{name}.py"
    _write(sandbox, program, _LIAR.read_bytes())
    add_spec(sandbox, name, [python_inside(sandbox), program], env, mode=mode)


def add_bash(sandbox: Speaker) -> None:
    """Put `bash_kernel` into a sandbox whose Python has ipykernel, as kernelspec `bash`."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for package in ("bash_kernel", "filetype"):
            found = find_spec(package)
            assert found is not None
            assert found.origin is not None
            tar.add(Path(found.origin).parent, arcname=package, filter=_without_caches)
    url = f"{sandbox.path}/files/archive"
    response = sandbox.http.put(url, params={"path": "/opt/bash"}, content=archive.getvalue())
    assert response.status_code in {200, 201, 204}, response.text
    argv = [python_inside(sandbox), "-m", "bash_kernel", "-f"]
    add_spec(sandbox, "bash", argv, {"PYTHONPATH": "/opt/bash", "PS1": "$"})


def check_outputs(outputs: Iterable[Mapping[str, Any]]) -> None:
    """Raises unless a notebook can hold them."""
    cell: dict[str, Any] = {"cell_type": "code", "id": "c", "metadata": {}, "source": ""}
    cell |= {"execution_count": None, "outputs": [dict(each) for each in outputs]}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    # A round through JSON, where tuples are lists.
    nbformat.validate(json.loads(json.dumps(notebook)))


def add_spec(
    sandbox: Speaker, name: str, argv: list[str], env: dict[str, str], *, mode: str = "signal"
) -> None:
    """Put a kernelspec into a sandbox; `argv` without the connection file, which comes last. mode:
    how it is interrupted.
    """
    spec = {
        "argv": [*argv, "{connection_file}"],
        "display_name": name,
        "language": name,
        "env": env,
        "interrupt_mode": mode,
    }
    _write(sandbox, f"{_SPECS}/{name}/kernel.json", json.dumps(spec).encode())


def _write(sandbox: Speaker, path: str, data: bytes) -> None:
    url = f"{sandbox.path}/files"
    response = sandbox.http.put(url, params={"path": path}, content=data)
    assert response.status_code in {200, 201, 204}, response.text


def python_inside(sandbox: Speaker) -> str:
    """The Python inside that has what Jupyter kernels need."""
    found = sandbox.exec(["test", "-x", sys.executable])
    return sys.executable if found["exit_code"] == 0 else "python3"


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry
