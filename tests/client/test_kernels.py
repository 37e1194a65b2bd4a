"""Kernels and cells, as users of the SDK have them: over real kernels, and over lines that fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from sandboxd_client import (
    ApiUnreachable,
    AsyncKernel,
    AsyncSandbox,
    AsyncSandboxd,
    BadRequest,
    Cell,
    CellEnded,
    CellFailed,
    CellGap,
    CellOutcome,
    CellOutput,
    CellStarted,
    CellText,
    Conflict,
    Fault,
    InputRequest,
    Internal,
    KernelBusy,
    KernelDied,
    LeaseEnded,
    NotFound,
    Sandboxd,
    SandboxToken,
    StartFailed,
)
from tests.client.faulty_server import CUT, answer, faulty_client, half, lines, problem, proxy_error
from tests.support.daemon import RunningDaemon, run_daemon

pytestmark = pytest.mark.anyio

CONFIG = """
[templates.python]
image = "host"
pool = {ready = 1, max = 8}

[templates.warm]
image = "host"
kernels = ["python3"]
pool = {ready = 1, max = 4}
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with real sandboxes."""
    with run_daemon(tmp_path_factory.mktemp("kernels"), backend="local", config=CONFIG) as running:
        yield running


@pytest.fixture
async def sandbox(house: RunningDaemon) -> AsyncIterator[AsyncSandbox]:
    """A sandbox of its own for each test."""
    async with AsyncSandboxd(house.url) as client, client.lease("python") as leased:
        yield leased


@pytest.fixture
async def kernel(sandbox: AsyncSandbox) -> AsyncKernel:
    """A kernel in it, that may be left as it is."""
    return await sandbox.kernel()


# ------------------------------------------------------------------------------- with real kernels


async def test_cells_share_variables_and_say_what_they_showed(kernel: AsyncKernel) -> None:
    assert (await kernel.execute("x = 20")).text == ""
    cell = await kernel.execute("print('twice:', end=' ')\n2 * x")
    assert (cell.outcome, cell.ok, cell.execution_count) == (CellOutcome.OK, True, 2)
    assert (cell.stdout, cell.text) == ("twice: ", "twice: \n40")
    assert [output["output_type"] for output in cell.outputs] == ["stream", "execute_result"]
    assert cell.check() is cell
    assert (await kernel.info()).execution_count == 2


async def test_an_exception_is_data_and_check_raises_it(kernel: AsyncKernel) -> None:
    cell = await kernel.execute("1 / 0")
    assert (cell.outcome, cell.fault, cell.mask) == (CellOutcome.ERROR, None, False)
    assert cell.error is not None
    assert (cell.error.ename, cell.error.evalue) == ("ZeroDivisionError", "division by zero")
    with pytest.raises(CellFailed, match="ZeroDivisionError: division by zero") as caught:
        cell.check()
    assert caught.value.cell is cell


async def test_a_stream_tells_what_happens_and_ends_with_the_cell(kernel: AsyncKernel) -> None:
    code = "name = input('who? ')\nprint('hi', name)\nname"
    events = []
    async with aclosing(kernel.stream(code, allow_stdin=True)) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, InputRequest):
                assert (event.prompt, event.password) == ("who? ", False)
                await kernel.input("Ada")
    assert isinstance(events[0], CellStarted)
    assert "".join(e.text for e in events if isinstance(e, CellText)) == "hi Ada\n"
    (shown,) = [event.output for event in events if isinstance(event, CellOutput)]
    assert shown["data"]["text/plain"] == "'Ada'"
    assert isinstance(events[-1], CellEnded)
    assert events[-1].cell.text == "hi Ada\n'Ada'"
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_input_that_nobody_asked_for_is_a_conflict(kernel: AsyncKernel) -> None:
    with pytest.raises(Conflict):
        await kernel.input("what?")
    refused = await kernel.execute("input()")
    assert (refused.outcome, refused.error and refused.error.ename) == (
        CellOutcome.ERROR,
        "StdinNotImplementedError",
    )


async def test_a_cell_that_was_left_is_attached_to_by_its_id(kernel: AsyncKernel) -> None:
    async with aclosing(kernel.stream("import time\nprint(1)", cell_id="mine")) as stream:
        assert isinstance(await anext(stream), CellStarted)
    cell = await kernel.cell("mine", wait_s=10)
    assert (cell.ok, cell.stdout) == (True, "1\n")
    assert (await kernel.execute("import time\nprint(1)", cell_id="mine")) == cell
    events = [event async for event in kernel.attach("mine", after=1)]
    assert [type(event) for event in events] == [CellText, CellEnded]
    with pytest.raises(NotFound):
        await kernel.cell("nobody's")
    with pytest.raises(Conflict):
        await kernel.execute("print(2)", cell_id="mine")


async def test_an_interrupt_ends_the_cell_and_keeps_the_variables(kernel: AsyncKernel) -> None:
    await kernel.execute("kept = 7")
    async with aclosing(kernel.stream("import time\nprint('on')\ntime.sleep(60)")) as stream:
        async for event in stream:
            if isinstance(event, CellText):
                assert await kernel.state() == "busy"
                await kernel.interrupt()
    assert isinstance(event, CellEnded)
    assert (event.cell.outcome, event.cell.fault) == (CellOutcome.INTERRUPTED, Fault.CLIENT)
    assert (await kernel.execute("kept")).text == "7"


async def test_a_deadline_ends_the_cell_and_is_the_agents(kernel: AsyncKernel) -> None:
    cell = await kernel.execute("while True: pass", timeout_s=0.3)
    assert (cell.outcome, cell.fault, cell.mask) == (CellOutcome.TIMEOUT, Fault.AGENT, False)
    assert not cell.kernel_restarted
    assert (await kernel.execute("'on'")).ok


async def test_a_restart_forgets_and_mends_a_dead_kernel(kernel: AsyncKernel) -> None:
    await kernel.execute("gone = 1")
    died = await kernel.execute("import os\nos._exit(3)")
    assert (died.outcome, died.fault, died.ok) == (CellOutcome.DIED, Fault.AGENT, False)
    with pytest.raises(KernelDied):
        await kernel.execute("1")
    assert (await kernel.restart()).state == "idle"
    cell = await kernel.execute("gone")
    assert cell.error is not None
    assert cell.error.ename == "NameError"


async def test_a_kernel_has_its_variables_its_directory_and_its_id(sandbox: AsyncSandbox) -> None:
    options: dict[str, Any] = {"env": {"WHO": "you"}, "cwd": "/tmp", "kernel_id": "mine"}
    async with sandbox.kernel(**options) as kernel:
        assert kernel.kernel_id == "mine"
        cell = await kernel.execute("import os\nprint(os.environ['WHO'], os.getcwd())")
        assert cell.stdout == "you /tmp\n"
        assert [(k.kernel_id, k.spec, k.state) for k in await sandbox.kernels()] == [
            ("mine", "python3", "idle")
        ]
        again = await sandbox.kernel(**options)
        assert (await again.execute("os.environ['WHO']")).text == "'you'"
    assert await sandbox.kernels() == []
    with pytest.raises(NotFound):
        await sandbox.get_kernel("mine").execute("1")
    await kernel.shutdown()


async def test_a_kernel_that_ended_with_its_sandbox_is_left_without_a_word(
    sandbox: AsyncSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    async with sandbox.kernel() as kernel:
        await sandbox.release()
        with pytest.raises(LeaseEnded):
            await kernel.execute("1")
    assert [each.message for each in caplog.records if each.name == "sandboxd_client"] == []


async def test_a_kernel_that_ran_before_the_lease_is_the_one_given(house: RunningDaemon) -> None:
    async with AsyncSandboxd(house.url) as client, client.lease("warm", env={"A": "1"}) as sandbox:
        assert [kernel.state for kernel in await sandbox.kernels()] == ["idle"]
        kernel = await sandbox.kernel()
        assert [info.kernel_id for info in await sandbox.kernels()] == [kernel.kernel_id]
        cell = await kernel.execute("import os\nos.environ['A']")
        assert (cell.text, cell.execution_count) == ("'1'", 1)


async def test_a_lease_asks_for_kernels_itself(house: RunningDaemon) -> None:
    async with (
        AsyncSandboxd(house.url) as client,
        client.lease("python", kernels=["python3"]) as sandbox,
    ):
        assert [kernel.state for kernel in await sandbox.kernels()] == ["idle"]


async def test_a_kernelspec_that_the_image_lacks_is_the_tasks_fault(sandbox: AsyncSandbox) -> None:
    with pytest.raises(StartFailed, match="cobol") as caught:
        await sandbox.kernel("cobol")
    assert (caught.value.fault, caught.value.mask) == (Fault.TASK, True)


async def test_names_are_completed_and_explained(kernel: AsyncKernel) -> None:
    await kernel.execute("%config IPCompleter.use_jedi = False")  # it is slow the first time
    await kernel.execute("def shout(words):\n    'Loudly.'")
    told = await kernel.complete("x = sho")
    assert (told.matches, told.cursor_start, told.cursor_end) == (["shout"], 4, 7)
    known = await kernel.inspect("shout(", 5)
    assert known.found
    assert "Loudly." in known.text
    assert not (await kernel.inspect("nobody")).found
    for behind in (kernel.complete("x", 2), kernel.inspect("x", 2)):
        with pytest.raises(BadRequest, match="behind the end"):
            await behind
    assert "Loudly." in (await kernel.execute("shout?")).text


def test_the_twin_has_all_of_it(house: RunningDaemon) -> None:
    with Sandboxd(house.url) as client, client.lease("python") as sandbox:
        with sandbox.kernel() as kernel:
            assert kernel.execute("1 + 1").text == "2"
            *_, ended = kernel.stream("print('so')")
            assert isinstance(ended, CellEnded)
            assert ended.cell.check().stdout == "so\n"
        assert sandbox.kernels() == []


# ------------------------------------------------------------------------------ over failing lines

KERNEL = "/v1/sandboxes/s/kernels/k"


def _cell(**members: Any) -> dict[str, Any]:
    told = {"cell_id": "c", "state": "ended", "outcome": "ok", "text": "2", "outputs": []}
    return {**told, **members}


RUNNING = _cell(state="running", outcome=None)


@pytest.mark.parametrize("lost", [CUT, half(200, _cell()), proxy_error(502)])
async def test_a_cell_whose_answer_is_lost_is_asked_for_under_its_id(lost: Any) -> None:
    async with faulty_client(lost, lost, answer(200, _cell())) as (server, client):
        with anyio.fail_after(10):
            cell = await client.sandbox("s").get_kernel("k").execute("1 + 1")
    assert cell.ok
    assert server.said() == [f"POST {KERNEL}/execute"] * 3
    assert len({seen.json["cell_id"] for seen in server.seen}) == 1


async def test_a_long_cell_is_waited_for_in_rounds_and_given_once() -> None:
    acts = [answer(202, RUNNING), answer(200, RUNNING), CUT, answer(200, _cell())]
    async with faulty_client(*acts) as (server, client):
        with anyio.fail_after(10):
            assert (await client.sandbox("s").get_kernel("k").execute("f()", cell_id="c")).ok
    assert server.said() == [f"POST {KERNEL}/execute", *[f"GET {KERNEL}/cells/c"] * 3]
    assert all(seen.query["wait_s"] == ["25"] for seen in server.seen)


async def test_a_stream_that_is_cut_is_attached_to_and_each_event_comes_once() -> None:
    started = {"seq": 1, "type": "started", "started_at": 1.0}
    said = {"seq": 2, "type": "stdout", "data": "a"}
    ended = {"seq": 4, "type": "ended", "cell": _cell()}
    acts = [
        CUT,
        lines(started, said, end=False),
        lines(said, {"seq": 3, "type": "gap", "events": 7}, {"seq": 3, "type": "keepalive"}, ended),
    ]
    async with faulty_client(*acts) as (server, client):
        kernel = client.sandbox("s").get_kernel("k")
        with anyio.fail_after(10):
            events = [event async for event in kernel.stream("f()", cell_id="c")]
    assert events == [
        CellStarted(1, 1.0),
        CellText(2, "stdout", "a"),
        CellGap(3, 7),
        CellEnded(4, Cell.from_json(_cell())),
    ]
    assert server.said() == [f"POST {KERNEL}/execute"] * 2 + [f"GET {KERNEL}/cells/c/events"]
    assert server.seen[-1].query == {"after": ["2"]}


async def test_a_kernel_whose_start_is_lost_is_started_under_the_same_id() -> None:
    told = answer(201, {"kernel_id": "k", "spec": "ir", "state": "idle"})
    async with faulty_client(CUT, told) as (server, client):
        assert (await client.sandbox("s").kernel("ir")).kernel_id == "k"
    assert len({seen.json["kernel_id"] for seen in server.seen}) == 1
    assert [seen.json["spec"] for seen in server.seen] == ["ir", "ir"]


@pytest.mark.parametrize("act", ["interrupt", "restart", "input"])
async def test_what_might_hit_another_cell_is_not_sent_again(act: str) -> None:
    async with faulty_client(CUT) as (server, client):
        kernel = client.sandbox("s").get_kernel("k")
        with pytest.raises(ApiUnreachable) as caught:
            await (kernel.input("x") if act == "input" else getattr(kernel, act)())
    assert server.said() == [f"POST {KERNEL}/{act}"]
    assert not caught.value.retry_safe


@pytest.mark.parametrize(
    ("code", "kind"), [("kernel_died", KernelDied), ("kernel_busy", KernelBusy)]
)
async def test_a_kernel_that_takes_no_cell_is_a_typed_error(code: str, kind: type) -> None:
    async with faulty_client(problem(code, 409)) as (_server, client):
        with pytest.raises(kind):
            await client.sandbox("s").get_kernel("k").execute("1")


async def test_an_unknown_outcome_is_an_error_and_never_guessed() -> None:
    async with faulty_client(answer(200, _cell(outcome="teleported"))) as (_server, client):
        with pytest.raises(Internal, match="teleported") as caught:
            await client.sandbox("s").get_kernel("k").execute("1")
    assert caught.value.mask


async def test_an_option_that_does_not_exist_is_named() -> None:
    kernel = AsyncSandboxd("http://127.0.0.1:9").sandbox("s").get_kernel("k")
    with pytest.raises(TypeError, match="timeout"):
        await kernel.execute("1", timeout=3)  # type: ignore[call-arg]


def test_jupyters_own_address_needs_a_key_or_has_a_token() -> None:
    sandbox = AsyncSandboxd("http://127.0.0.1:9").sandbox("s")
    assert sandbox.jupyter_url() == "http://127.0.0.1:9/v1/sandboxes/s/jupyter"
    token = SandboxToken(token="t", url="http://127.0.0.1:9/s/t")
    assert sandbox.jupyter_url(token=token) == "http://127.0.0.1:9/s/t/jupyter"


def test_a_cell_becomes_a_notebooks() -> None:
    shown = {"output_type": "stream", "name": "stdout", "text": "2\n"}
    cell = Cell.from_json(_cell(cell_id="my.cell", execution_count=3, outputs=[shown]))
    assert cell.to_notebook("print(2)") == {
        "cell_type": "code",
        "id": "my-cell",
        "metadata": {},
        "execution_count": 3,
        "source": "print(2)",
        "outputs": [shown],
    }
