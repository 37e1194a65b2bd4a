"""Who may speak with a kernel: nobody in another sandbox, nor in its own without its key."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.contract.speaker import Speaker
from tests.support.cells import Kernel, python_inside

pytestmark = pytest.mark.timeout(60)

_FIND_SOCKETS = "grep -o '@kernel-[A-Za-z0-9-]*' /proc/net/unix | sort -u"
# What a client without the key can try: to run code, to stop the kernel, to ask it.
_FORGE = """
import json, sys, zmq
prefix, key = sys.argv[1], sys.argv[2].encode()
import hashlib, hmac
def message(kind, content):
    parts = [json.dumps(part).encode() for part in (
        {"msg_id": "forged", "msg_type": kind, "username": "x", "session": "s",
         "date": "2026-01-01T00:00:00Z", "version": "5.3"}, {}, {}, content)]
    code = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts: code.update(part)
    return [b"<IDS|MSG>", code.hexdigest().encode(), *parts]
context = zmq.Context()
context.linger = 500
answers = 0
for number in (1, 4):
    socket = context.socket(zmq.DEALER)
    socket.connect(f"ipc://{prefix}-{number}")
    socket.send_multipart(message("execute_request", {"code": "import os; os.mkdir('/tmp/forged')",
        "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}))
    socket.send_multipart(message("shutdown_request", {"restart": False}))
    answers += socket.poll(1500) != 0
print("answers", answers)
"""


@pytest.fixture
def neighbour(http: httpx.Client) -> Iterator[Speaker]:
    body = http.post("/v1/sandboxes", json={"template": "python"}).json()
    made = Speaker(http, f"/v1/sandboxes/{body['id']}")
    yield made
    http.delete(made.path)


def sockets(sandbox: Speaker) -> list[str]:
    return str(sandbox.exec(_FIND_SOCKETS)["stdout"]).split()


def test_a_kernels_sockets_are_of_its_sandbox_alone(kernel: Kernel, neighbour: Speaker) -> None:
    own = sockets(kernel.sandbox)
    assert len(own) >= 5
    assert sockets(neighbour) == []
    connect = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\n"
        "s.connect('\\0' + sys.argv[1].lstrip('@'))"
    )
    for name in own:
        tried = neighbour.exec(["python3", "-c", connect, name])
        assert tried["exit_code"] == 1
        assert "ConnectionRefusedError" in tried["stderr"]
    assert kernel.ok("1") == "1"


def test_what_somebody_inside_sends_without_the_key_is_ignored(kernel: Kernel) -> None:
    kernel.ok("kept = 7")
    app = "get_ipython().kernel.parent"
    prefix, key = kernel.ok(f"print({app}.ip, {app}.session.key.decode())").split()
    forge = [python_inside(kernel.sandbox), "-c", _FORGE, prefix]
    tried = kernel.sandbox.exec([*forge, "another key"], timeout_s=20)
    assert tried["stdout"] == "answers 0\n", tried
    assert kernel.sandbox.exec("ls -d /tmp/forged")["exit_code"] != 0
    assert kernel.ok("kept") == "7"
    # The same with the key is heard: it was the key that was missing.
    assert kernel.sandbox.exec([*forge, key], timeout_s=20)["stdout"] != "answers 0\n"


def test_the_key_and_the_sockets_names_are_of_that_kernel_alone(
    kernel: Kernel, liar: Kernel
) -> None:
    files = kernel.sandbox.exec("cat /tmp/kernel-*.json /dev/shm/kernel-*.json 2>/dev/null")
    facts = [json.loads(line + "}") for line in str(files["stdout"]).split("}") if line.strip()]
    assert len({each["key"] for each in facts}) == len(facts) >= 2
    assert len({each["ip"] for each in facts}) == len(facts)
    assert all(len(each["key"]) >= 20 for each in facts)
    modes = kernel.sandbox.exec("stat -c %a /tmp/kernel-*.json")["stdout"]
    assert set(str(modes).split()) == {"600"}
