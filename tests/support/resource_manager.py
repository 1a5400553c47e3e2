"""A stand-in for YARN's resource manager, with the answers of a real one (tests/e2e/test_on_yarn.py asks that). Runs anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class ResourceManager:
    """Knows one application, in one ``state``; None: it does not know it. ``login``: it answers nobody. ``asked`` are the paths."""

    def __init__(self) -> None:
        self.state: str | None = "ACCEPTED"
        self.login = False
        self.asked: list[str] = []
        self.url = ""

    def answer(self, path: str) -> tuple[int, object]:
        self.asked.append(path)
        if self.login:
            return 401, {}
        name = path.rpartition("/")[2]
        if self.state is None:
            why = f"app with id: {name} not found"
            return 404, {"RemoteException": {"exception": "NotFoundException", "message": why}}
        final = {"FINISHED": "SUCCEEDED", "FAILED": "FAILED", "KILLED": "KILLED"}.get(self.state, "UNDEFINED")
        return 200, {"app": {"id": name, "state": self.state, "finalStatus": final, "diagnostics": ""}}


@contextmanager
def resource_manager() -> Iterator[ResourceManager]:
    manager = ResourceManager()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, said = manager.answer(self.path)
            body = json.dumps(said).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    manager.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield manager
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
