"""A small web application for a port inside: a page with all that pages do.

Run as `python page_program.py PORT` with FastAPI and uvicorn. It knows nothing of a prefix.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from urllib.parse import parse_qs

import uvicorn
from fastapi import FastAPI, Request, WebSocket
from starlette.responses import HTMLResponse, RedirectResponse, StreamingResponse
from starlette.websockets import WebSocketDisconnect

PAGE = """<!doctype html>
<title>inside</title>
<p id="fetched"></p><p id="posted"></p><p id="socket"></p><p id="events"></p>
<form method="post" action="form"><input name="name" value=""><button>send</button></form>
<script>
  const show = (id, text) => { document.getElementById(id).textContent += text; };
  fetch("api/hello").then(answer => answer.json()).then(said => show("fetched", said.said));
  fetch("api/size", {method: "POST", body: "x".repeat(3000000)})
    .then(answer => answer.json()).then(said => show("posted", said.size));
  const socket = new WebSocket(new URL("ws", location.href).href.replace("http", "ws"), ["echo"]);
  socket.onopen = () => socket.send("over and back");
  socket.onmessage = event => {
    show("socket", socket.protocol + ":" + event.data);
    socket.close(4000);
  };
  socket.onclose = event => show("socket", ":" + event.code);
  const events = new EventSource("events");
  events.onmessage = event => {
    show("events", event.data);
    if (event.data === "3") events.close();
  };
</script>
"""
HOSTILE = """<!doctype html>
<title>untouched</title>
<form method="post" action="/v1/sandboxes" enctype="text/plain">
  <input type="hidden" name='{"template": "page", "labels": {"by": "' value='page"}}'>
  <button id="bait">press here</button>
</form>
<script>
  document.title = "scripts run";
  document.forms[0].submit();
  fetch("/v1/sandboxes", {method: "POST", body: '{"template": "page"}'});
</script>
"""
app = FastAPI()


@app.get("/")
async def page() -> HTMLResponse:
    return HTMLResponse(PAGE)


@app.get("/hostile")
async def hostile() -> HTMLResponse:
    return HTMLResponse(HOSTILE)


@app.get("/api/hello")
async def hello(request: Request) -> dict[str, str]:
    return {"said": f"hello from {request.headers['host']}"}


@app.post("/api/size")
async def size(request: Request) -> dict[str, int]:
    return {"size": len(await request.body())}


@app.post("/form")
async def form(request: Request) -> RedirectResponse:
    name = parse_qs((await request.body()).decode())["name"][0]
    answer = RedirectResponse("/done", status_code=303)
    answer.set_cookie("name", name)
    return answer


@app.get("/done")
async def done(request: Request) -> HTMLResponse:
    return HTMLResponse(f"<title>done</title><p id=name>{request.cookies.get('name')}</p>")


@app.get("/events")
async def events() -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        for number in range(1, 4):
            yield f"data: {number}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


@app.websocket("/ws")
async def echo(socket: WebSocket) -> None:
    await socket.accept(subprotocol="echo")
    try:
        while True:
            await socket.send_text(await socket.receive_text())
    except WebSocketDisconnect:
        pass


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
