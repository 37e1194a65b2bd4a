"""What a sandbox may reach, it reaches: tunnels, plain HTTP, forwards, and what programs need."""

from __future__ import annotations

import json

import anyio
import pytest
from anyio.abc import SocketStream

from sandboxd.model.way_out import ForwardOrder
from tests.support.ways import World, echo, serving

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def tell_request(stream: SocketStream) -> None:
    """Answer each request with its own head, as JSON, and its body."""
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            data += await stream.receive()
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        while len(data) < int(headers.get("content-length", 0)):
            data += await stream.receive()
        length = int(headers.get("content-length", 0))
        said = {"line": lines[0], "headers": headers, "body": data[:length].decode()}
        data = data[length:]
        body = json.dumps(said).encode()
        answer = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nContent-Length: %d\r\n\r\n%b"
        await stream.send(answer % (len(body), body))
        if headers.get("connection") == "close":
            return


async def test_a_tunnel_carries_bytes_both_ways_and_ends_each_by_itself(world: World) -> None:
    world.name("echo.test")
    async with serving(echo, host=str(world.here)) as port:
        box = await world.lease(allow=(f"echo.test:{port}",))
        said = await box.python(f"""
import hashlib, threading
s, said = tunnel("echo.test:{port}", early=b"at once")
print(said.splitlines()[0])
data = os.urandom(1 << 20) * 8
def feed():
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=feed).start()
print(hashlib.sha256(rest(s)).hexdigest() == hashlib.sha256(b"at once" + data).hexdigest())
""")
    assert said == "HTTP/1.1 200 Connection established\nTrue\n"
    usage = box.tenancy.shown().usage
    assert usage.network_in_bytes == usage.network_out_bytes == (8 << 20) + 7
    assert world.looked_up == ["echo.test"]


async def test_plain_http_goes_out_with_what_concerns_both_ends_alone(world: World) -> None:
    world.name("web.test")
    async with serving(tell_request, host=str(world.here)) as port:
        box = await world.lease(allow=(f"web.test:{port}",))
        said = await box.python(f"""
s = to(PROXY)
def once(request):
    s.sendall(request)
    said = head(s)
    lines = said.lower().split("\\r\\n")
    length = int(next(line for line in lines if "content-length" in line).split(":")[1])
    body = b""
    while len(body) < length:
        body += s.recv(length - len(body))
    print(json.dumps([said, json.loads(body)]))
once(b"GET http://web.test:{port}/a?b=c HTTP/1.1\\r\\nHost: other.test\\r\\n"
     b"Proxy-Authorization: Basic x\\r\\nProxy-Connection: keep-alive\\r\\n"
     b"Connection: x-mine\\r\\nX-Mine: 1\\r\\nX-Kept: 2\\r\\nTE: trailers\\r\\n\\r\\n")
once(b"POST http://web.test:{port}/p HTTP/1.1\\r\\nHost: web.test\\r\\n"
     b"Content-Length: 5\\r\\n\\r\\nhello")
""")
    first, second = map(json.loads, said.splitlines())
    assert first[1]["line"] == "GET /a?b=c HTTP/1.1"
    assert first[1]["headers"] == {
        "host": f"web.test:{port}", "x-kept": "2", "connection": "close",
    }  # fmt: skip
    assert "keep-alive:" not in first[0].lower()
    assert (second[1]["line"], second[1]["body"]) == ("POST /p HTTP/1.1", "hello")


async def test_a_forward_is_bytes_to_one_address_which_may_be_the_trainer_s_loopback(
    world: World,
) -> None:
    async with serving(tell_request, host="127.0.0.1") as port:
        box = await world.lease(forwards={8000: f"http://127.0.0.1:{port}"})
        said = await box.python("""
print(ask(b"GET /x HTTP/1.1\\r\\nHost: as.given\\r\\nConnection: close\\r\\n\\r\\n", 8000))
print(os.environ.get("HTTP_PROXY"))
""")
    assert '"host": "as.given"' in said
    assert said.endswith("None\n")  # nothing but the forward leads out


async def test_secret_headers_are_added_outside_and_shown_nowhere(world: World) -> None:
    order = ForwardOrder(url="", headers={"Authorization": "Bearer s3cret"})
    async with serving(tell_request, host="127.0.0.1") as port:
        order = ForwardOrder(url=f"http://127.0.0.1:{port}/v1", headers=order.headers)
        box = await world.lease(forwards={8000: order})
        said = await box.python("""
print(ask(b"POST /chat HTTP/1.1\\r\\nHost: x\\r\\nauthorization: mine\\r\\nConnection: close\\r\\n"
          b"Transfer-Encoding: chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\n\\r\\n", 8000))
print(open("/proc/self/environ").read())
""")
    assert '"line": "POST /v1/chat HTTP/1.1"' in said
    assert '"authorization": "bearer s3cret"' in said
    assert f'"host": "127.0.0.1:{port}"' in said
    assert "mine" not in said
    shown = repr(box.tenancy.lease) + repr(order) + repr(list(box.tenancy.diary))
    assert "s3cret" not in shown + repr(box.tenancy.way_out and box.tenancy.way_out.policy)
    assert box.tenancy.lease.terms.forwards[0].header_names == ("authorization",)


async def test_an_answer_is_passed_on_as_it_comes(world: World) -> None:
    step = anyio.Event()

    async def slowly(stream: SocketStream) -> None:
        await stream.receive()
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await step.wait()
        await stream.send(b"data: 2\n\n")

    async with serving(slowly, host="127.0.0.1") as port:
        box = await world.lease(forwards={8000: f"http://127.0.0.1:{port}/v1"})
        running = await box.start("""
s = to(8000, b"GET /stream HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
print(head(s))
said = b""
while b"data: 1" not in said:
    said += s.recv(100)
print("first", flush=True)
print(rest(s))
""")
        await box.until_said(running, b"first")
        step.set()
        assert "data: 2" in await box.said(running)


async def test_a_request_whose_asker_hangs_up_is_given_up_outside_too(world: World) -> None:
    asked, given_up = anyio.Event(), anyio.Event()

    async def thinks(stream: SocketStream) -> None:
        await stream.receive()
        asked.set()
        try:
            await stream.receive()
        finally:
            given_up.set()

    async with serving(thinks, host="127.0.0.1") as port:
        box = await world.lease(forwards={8000: f"http://127.0.0.1:{port}/v1"})
        running = await box.start("""
s = to(8000, b"GET /long HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
time.sleep(60)
""")
        with anyio.fail_after(20):
            await asked.wait()
            await box.tenancy.guest.signal(running, "KILL")
            await given_up.wait()


async def test_requests_may_be_sent_one_behind_the_other(world: World) -> None:
    async with serving(tell_request, host="127.0.0.1") as port:
        box = await world.lease(forwards={8000: f"http://127.0.0.1:{port}/v1"})
        said = await box.python("""
one = b"GET /%d HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
last = b"GET /3 HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"
print(ask(one % 1 + one % 2 + last, 8000))
""")
    assert [f"/v1/{number} " in said for number in (1, 2, 3)] == [True] * 3


async def test_a_server_inside_may_have_the_usual_port_of_the_proxy(world: World) -> None:
    world.name("web.test")
    async with serving(echo, host="127.0.0.1") as port:
        box = await world.lease(
            allow=(f"web.test:{port}",), forwards={3128: f"tcp://127.0.0.1:{port}"}
        )
        said = await box.python("""
s = to(3128, b"hello")
s.shutdown(socket.SHUT_WR)
print(PROXY != 3128, rest(s))
""")
    assert said == "True b'hello'\n"


async def test_variables_that_the_caller_gave_stay(world: World) -> None:
    box = await world.lease("internet", env={"HTTPS_PROXY": "http://mine:1", "NO_PROXY": "x"})
    said = await box.shell("env | grep -i _proxy | sort")
    assert "HTTPS_PROXY=http://mine:1" in said
    assert "https_proxy" not in said
    assert "NO_PROXY=x" in said
    assert "http_proxy=http://127.0.0.1:3128" in said


async def test_a_sandbox_without_a_way_out_has_neither_proxy_nor_variables(world: World) -> None:
    box = await world.lease()
    said = await box.python("""
print(PROXY)
try:
    to(3128)
except ConnectionRefusedError:
    print("nobody listens")
""")
    assert said == "0\nnobody listens\n"
    assert box.tenancy.way_out is None
