"""What those inside see and reach: nothing of the machine, of other sandboxes, or of us."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.isolation import probes
from tests.conformance.isolation.conftest import ENVIRON, KEY, Yard
from tests.contract.speaker import Speaker, problem

pytestmark = pytest.mark.timeout(60)

# A connection and what it came to, by the way out if there is one, and directly.
REACH = """
import socket
PROXY = os.environ.get("http_proxy", "")
def directly(host, port):
    try:
        with socket.create_connection((host, port), 3) as line:
            return "connected to %s" % (line.getpeername(),)
    except OSError as error:
        return "no: %s" % error
def by_proxy(host, port):
    if not PROXY:
        return "no: no proxy"
    shown = "[%s]" % host if ":" in host else host
    with socket.create_connection(("127.0.0.1", int(PROXY.rsplit(":", 1)[1])), 5) as line:
        line.settimeout(20)
        where = f"{shown}:{port}"
        line.sendall(f"CONNECT {where} HTTP/1.1\\r\\nHost: {where}\\r\\n\\r\\n".encode())
        said = line.recv(4096)
    return ("connected: " if b" 200 " in said[:20] else "no: ") + said[:40].decode("latin-1")
print(json.dumps({f"{way.__name__} {host} {port}": way(host, port)
                  for host, port in TARGETS for way in (directly, by_proxy)}))
"""

METADATA = [
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "::ffff:169.254.169.254",
    "fd00:ec2::254",
    "fe80::a9fe:a9fe",
    "metadata.google.internal",
    "metadata",
    "instance-data",
    "100.100.100.200",
    "169.254.170.2",
]


def reached(box: Speaker, targets: list[tuple[str, int]]) -> dict[str, str]:
    """Those of the targets that could be connected to, in either way."""
    code = REACH.replace("TARGETS", repr(targets))
    found: dict[str, str] = json.loads(probes.run(box, code))
    assert len(found) == 2 * len(targets)
    return {name: said for name, said in found.items() if not said.startswith("no:")}


@pytest.fixture(params=["root", "wide"])
def networked(request: pytest.FixtureRequest, yard: Yard) -> Any:
    """A sandbox that may reach nothing, and one that may reach the internet."""
    speaker = yard.lease(str(request.param))
    yield speaker
    yard.http.delete(speaker.path)


@pytest.mark.requirement("SE-01")
def test_cloud_metadata_is_out_of_reach_by_any_name(networked: Speaker) -> None:
    assert reached(networked, [(host, 80) for host in METADATA]) == {}


@pytest.mark.requirement("SE-02")
def test_our_own_api_is_out_of_reach_by_any_address(yard: Yard, networked: Speaker) -> None:
    hosts = ["127.0.0.1", "localhost", "::1", "0.0.0.0", "host.docker.internal", "172.17.0.1"]
    hosts += ["10.0.2.2", "gateway.docker.internal", *_machine_addresses()]
    assert reached(networked, [(host, yard.port) for host in hosts]) == {}


@pytest.mark.requirement("SE-02")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0.0.0.0"])
def test_no_forward_leads_to_our_own_api(yard: Yard, root_box: Speaker, host: str) -> None:
    forwards = {"8000": f"http://{host}:{yard.port}"}
    problem(root_box.post("/forwards", {"forwards": forwards}), 403, "forbidden")
    whole = {"template": "root", "forwards": forwards}
    problem(yard.http.post("/v1/sandboxes", json=whole), 403, "forbidden")


def test_the_probe_of_ways_does_reach_what_may_be_reached(root_box: Speaker) -> None:
    code = "server = __import__('socket').create_server(('127.0.0.1', 7001))\n"
    code += REACH.replace("TARGETS", "[('127.0.0.1', 7001)]")
    assert "connected to" in probes.run(root_box, code)


@pytest.mark.requirement("SE-02")
def test_no_socket_is_there_but_the_guests_own(yard: Yard, root_box: Speaker) -> None:
    code = """
found = []
for place, folders, files in os.walk("/"):
    if place == "/":
        folders[:] = [name for name in folders if name not in ("proc", "sys")]
    for name in files:
        path = os.path.join(place, name)
        try:
            if os.stat(path, follow_symlinks=False).st_mode & 0o170000 == 0o140000:
                found.append(path)
        except OSError:
            pass
named = [line.split()[-1] for line in open("/proc/net/unix").read().splitlines()[1:]
         if len(line.split()) == 8]
print(json.dumps([found, named]))
"""
    found, named = json.loads(probes.run(root_box, code))
    guests = [] if yard.name == "kubernetes" else ["/run/guest/s.sock"]
    assert found == guests
    assert [name for name in named if name != "/run/guest/s.sock"] == []


def test_only_a_loopback_is_there(yard: Yard, networked: Speaker) -> None:
    if not yard.walled:
        pytest.skip("pods have a network; policies are what keeps it empty")
    said = networked.exec("cat /proc/net/dev")["stdout"].splitlines()[2:]
    assert [line.split(":")[0].strip() for line in said] == ["lo"]


@pytest.mark.requirement("SE-03")
@pytest.mark.parametrize("template", ["root", "wide"])
def test_sandboxes_do_not_reach_each_other(yard: Yard, template: str) -> None:
    if not yard.walled:
        pytest.skip("the tests' cluster enforces no network policy")
    one, other = yard.lease(template), yard.lease(template)
    server = """
import socket
lines = []
for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        line = socket.socket(family, kind)
        if family == socket.AF_INET6:
            line.setsockopt(41, 26, 1)
        line.bind((host, 9000))
        lines.append(line)
        if kind == socket.SOCK_STREAM:
            line.listen()
hidden = socket.socket(socket.AF_UNIX)
hidden.bind(b"\\0canary-socket")
hidden.listen()
open("/tmp/serving", "w").close()
signal.pause()
"""
    other.start(["python3", "-c", probes.text_of(server)])
    while other.exec("test -e /tmp/serving")["exit_code"]:
        pass
    addresses = other.exec("cat /etc/hostname; hostname -I; cat /etc/hosts")["stdout"].split()
    hosts = {"127.0.0.1", "::1", "169.254.0.1", "172.17.0.2", "172.17.0.3", *addresses}
    assert reached(one, [(host, 9000) for host in sorted(hosts)]) == {}
    code = """
import socket
def knock(family, kind, where):
    line = socket.socket(family, kind)
    line.settimeout(2)
    line.connect(where)
    if kind == socket.SOCK_DGRAM:
        line.send(b"x")
        line.recv(1)
    return "done"
report(
    hidden=lambda: knock(socket.AF_UNIX, socket.SOCK_STREAM, b"\\0canary-socket"),
    udp=lambda: knock(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 9000)),
    all_nodes=lambda: knock(socket.AF_INET6, socket.SOCK_DGRAM, ("ff02::1", 9000, 0, 1)),
    broadcast=lambda: knock(socket.AF_INET, socket.SOCK_DGRAM, ("255.255.255.255", 9000)),
)
"""
    got = probes.results(probes.run(one, code))
    assert "done" not in got.values(), got
    # The probe does find what is beside it.
    assert probes.results(probes.run(other, code))["hidden"] == "done"
    for speaker in (one, other):
        yard.http.delete(speaker.path)


def test_no_process_of_the_machine_is_there(box: Speaker) -> None:
    code = """
seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
print(json.dumps([len(seen), open("/proc/1/comm").read().strip()]))
"""
    count, first = json.loads(probes.run(box, code))
    assert count < 10
    assert first.startswith("sandbox-guest")


@pytest.mark.requirement("SE-02")
def test_nothing_of_ours_stands_in_environments_arguments_or_files(
    yard: Yard, box: Speaker
) -> None:
    code = """
def texts():
    for name in filter(str.isdigit, os.listdir("/proc")):
        for kind in ("cmdline", "environ", "mountinfo", "cgroup"):
            yield f"/proc/{name}/{kind}"
    for top in ("/run", "/tmp", "/workspace", "/etc", "/var/tmp", "/home", "/root"):
        for place, folders, files in os.walk(top):
            for name in files:
                path = os.path.join(place, name)
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 20:
                    yield path
found = []
for path in texts():
    try:
        data = open(path, "rb").read()
    except OSError:
        continue
    # The words come in halves, so that this program does not find itself.
    found += [[path, word] for word in (first + last for first, last in WORDS)
              if word.encode() in data]
print(json.dumps(found))
"""
    words = [_halved(word) for word in (KEY, ENVIRON, "own-canary-of-this-probe")]
    box.exec("printf own-canary-of-this-probe > /tmp/own")
    found = json.loads(probes.run(box, code.replace("WORDS", repr(words))))
    assert found == [["/tmp/own", "own-canary-of-this-probe"]]


def test_the_daemons_folder_cannot_be_seen(yard: Yard, box: Speaker) -> None:
    (yard.folder / "canary").write_text("x")
    said = box.exec(f"cat {yard.folder}/canary; ls {yard.folder}; ls /var/lib/docker /run/docker*")
    assert said["stdout"] == ""
    assert said["exit_code"] != 0


@pytest.mark.requirement("SE-05")
def test_no_account_of_a_service_is_there(root_box: Speaker) -> None:
    said = root_box.exec("ls /var/run/secrets /run/secrets ~/.docker ~/.aws ~/.kube 2>/dev/null")
    assert said["stdout"] == ""


def test_what_is_written_inside_is_not_on_the_machine(root_box: Speaker) -> None:
    marker = "sandboxd-marker-of-a-test"
    root_box.exec(f"for d in /usr /etc /tmp /root /var /opt /; do echo x > $d/{marker}; done")
    for place in ("/usr", "/etc", "/tmp", "/root", "/var", "/opt", "/"):
        if os.access(place, os.X_OK):
            assert not (Path(place) / marker).exists()


def _halved(word: str) -> tuple[str, str]:
    return word[: len(word) // 2], word[len(word) // 2 :]


def _machine_addresses() -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [str(line.getsockname()[0])]


def test_an_engines_socket_is_no_file_of_a_sandbox(yard: Yard, root_box: Speaker) -> None:
    """Not even by the way of a file call, which acts as the guest does."""
    for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock"):
        answer = root_box.get("/files/stat", path=path)
        assert answer.status_code == 404, answer.text
        assert not stat.S_ISSOCK(answer.json().get("mode") or 0)
