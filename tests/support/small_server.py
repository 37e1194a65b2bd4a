"""As much of an API server as a test needs: it answers what is posted as the test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from sandboxd.backends.kubernetes.talking.credentials import Access, read_access


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer. headers: besides those that every answer has."""

    body: dict[str, Any]
    status: int = 201
    headers: dict[str, str] = field(default_factory=dict)


Answers = Callable[[str, dict[str, Any]], Answer]  # of a path and what is posted there


@contextmanager
def small_server(answers: Answers) -> Iterator[str]:
    """Its address. `answers` runs in threads, and may take its time."""

    class Speaks(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            answer = answers(self.path, json.loads(self.rfile.read(length)))
            data = json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Speaks) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def access_to(url: str, folder: Path) -> Callable[[], Access]:
    """Reads credentials for it, which are none, from a file in that folder."""
    file = folder / "kubeconfig"
    file.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        f"clusters: [{{name: k, cluster: {{server: {url}}}}}]\n"
        "users: [{name: u, user: {}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
    )
    return lambda: read_access(file, "")
