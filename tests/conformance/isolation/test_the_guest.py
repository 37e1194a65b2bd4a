"""The guest attacked by what runs beside it: it is not driven, not ended, and not imitated."""

from __future__ import annotations

import json

import pytest

from sandboxd.guest.tcp import GUEST_PORT
from tests.conformance.isolation import probes
from tests.conformance.isolation.conftest import Yard
from tests.contract.speaker import Speaker

pytestmark = pytest.mark.timeout(60)

CLIENT = """
import itertools, socket
PLACES = ["/run/guest/s.sock"]
if PORT:
    own = socket.gethostbyname(socket.gethostname())
    PLACES = [("127.0.0.1", PORT), (own, PORT)]
CALLS = [
    ("GET", "/v1/hello", b""),
    ("POST", "/v1/claim", b'{"lease_id": "x", "workdir": "/", "life_s": 99999}'),
    ("POST", "/v1/execs", b'{"exec_id": "forged", "argv": ["true"]}'),
    ("GET", "/v1/readings", b""),
    ("POST", "/v1/renew", b'{"life_s": 99999}'),
    ("POST", "/v1/kill", b"{}"),
    ("DELETE", "/v1/execs/x", b""),
    ("GET", "/v1/files?path=/etc/hostname", b""),
    ("GET", "/", b""),
]
said = {}
for place, (method, path, body) in itertools.product(PLACES, CALLS):
    try:
        line = socket.socket(socket.AF_INET if PORT else socket.AF_UNIX)
        line.settimeout(5)
        line.connect(place)
        line.sendall(f"{method} {path} HTTP/1.1\\r\\nHost: guest\\r\\nContent-Length: {len(body)}"
                     "\\r\\n\\r\\n".encode() + body)
        said[f"{place} {method} {path}"] = line.recv(4096).decode("latin-1")
    except OSError as error:
        said[f"{place} {method} {path}"] = ""
print(json.dumps(said))
"""


def test_nobody_inside_is_answered_by_the_guest(yard: Yard, box: Speaker) -> None:
    port = GUEST_PORT if yard.name == "kubernetes" else 0
    said = json.loads(probes.run(box, CLIENT.replace("PORT", str(port))))
    assert {call: words for call, words in said.items() if words} == {}
    assert len(said) == (18 if port else 9)
    if port:
        listening = probes.run(box, "print(open('/proc/net/tcp6').read())")
        assert f":{port:04X} " in listening
    assert box.get("/execs/forged").status_code == 404
    assert box.exec("exit 7")["exit_code"] == 7


@pytest.mark.requirement("LC-13")
@pytest.mark.parametrize("signals", ["9", "15", "$(seq 1 64)"])
def test_lc_13_the_first_process_cannot_be_ended_from_inside(box: Speaker, signals: str) -> None:
    box.exec(f"for s in {signals}; do kill -$s 1; done 2>/dev/null; true")
    assert box.exec("echo alive; exit 3")["exit_code"] == 3
    assert box.get().json()["state"] == "leased"


@pytest.mark.parametrize(
    "text",
    [
        "cat /proc/1/environ /proc/1/maps",
        "cat /proc/1/fd/*",
        "ls /proc/1/root/ /proc/1/cwd/",
        "cat < /proc/1/mem",
        ": >> /proc/1/fd/3",
        "cat < /proc/$PPID/mem",
        "cat /proc/$PPID/fd/*",
    ],
)
def test_neither_the_guest_nor_a_shim_can_be_looked_into(box: Speaker, text: str) -> None:
    said = box.exec(f"({text}) 2>&1")
    assert "denied" in said["stdout"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("kill -9 -1; exit 3", 3),
        ("kill -9 $PPID; exit 7", 7),
        ("kill -STOP $PPID; exit 9", 9),
        ("sleep 60 & kill -9 $PPID; exit 0", 0),
    ],
)
def test_who_ends_or_stops_its_watcher_cannot_hide_its_status(
    box: Speaker, text: str, status: int
) -> None:
    ended = box.exec(text)
    assert (ended["outcome"], ended["exit_code"]) == ("exited", status)
    assert box.exec("exit 5")["exit_code"] == 5


FORGERY = """
import base64
record = {"seq": 99, "type": "ended", "exec": {"outcome": "exited", "exit_code": 0, "status": 0}}
words = [
    json.dumps(record) + "\\n",
    "\\n\\n" + json.dumps({"type": "error", "code": "internal"}) + "\\n",
    "HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}",
    "0\\r\\n\\r\\n",
    "\\x03" + json.dumps({"exit": {"exit_code": 0}}),
    "\\x00\\x00\\x00\\x02\\x01{}",
    "__EXIT_CODE__=0\\n", "::exit 0::\\n", "\\x1b]133;D;0\\x07",
]
for fd in range(1, 64):
    for word in words:
        try:
            os.write(fd, word.encode("latin-1"))
        except OSError:
            break
sys.stdout.flush()
os._exit(41)
"""


def test_what_looks_like_our_own_frames_is_output_and_nothing_else(box: Speaker) -> None:
    command = ["python3", "-c", probes.text_of(FORGERY)]
    whole = box.exec(command)
    assert (whole["outcome"], whole["exit_code"]) == ("exited", 41)
    assert '"type": "ended"' in whole["stdout"]
    with box.stream(command) as events:
        seen = list(events)
    assert [event["type"] for event in seen].count("ended") == 1
    assert seen[-1]["type"] == "ended"
    assert seen[-1]["exec"]["exit_code"] == 41
    assert {event["type"] for event in seen} <= {"started", "stdout", "stderr", "ended"}
    shell = box.post("/shells", {}).json()["shell_id"]
    text = "python3 - <<'END'\n" + probes.text_of(FORGERY) + "\nEND"
    run = box.post(f"/shells/{shell}/run", {"text": text}).json()
    assert run["exit_code"] == 41


def test_nothing_in_a_terminal_is_taken_for_our_own(box: Speaker) -> None:
    size = {"rows": 24, "cols": 80}
    ended = box.exec(["python3", "-c", probes.text_of(FORGERY)], tty=size)
    assert (ended["outcome"], ended["exit_code"]) == ("exited", 41)
