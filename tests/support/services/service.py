"""An HTTP server in threads of the test, which can refuse a launch, lose an answer, and die. Runs anywhere.

A service that dies leaves its drivers alone: they are processes of the ``Host``.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock, Thread
from typing import TYPE_CHECKING, Self

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from tests.support.processes import free_port

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from tests.support.services.hosts import Host


@dataclass(frozen=True)
class Refusal:
    status: int
    text: str


@dataclass(frozen=True)
class Loss:
    """The request is carried out, and the connection closes without an answer."""


class Service(ABC):
    """``requests`` has the method and the path of each request that came, in their order."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.requests: list[tuple[str, str]] = []
        self.listens = False
        self._faults: list[Refusal | Loss] = []
        self._one_at_a_time = RLock()
        self._port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @abstractmethod
    def launches(self, request: Request) -> bool:
        """Return whether a request asks to start something. Such requests are counted, refused and lost."""

    @abstractmethod
    def answer(self, request: Request) -> Response:
        """Carry out a request. One runs at a time; the body of the response may follow later."""

    @abstractmethod
    def refused(self, status: int, text: str) -> Response:
        """Return the error as this service puts it."""

    # -- what a test does to it --------------------------------------------------------------------------------------

    def refuse_launch(self, status: int = 500, text: str = "refused by the test") -> None:
        """Answer the next launch with an error. Nothing is started."""
        self._faults.append(Refusal(status, text))

    def lose_answer(self) -> None:
        """Carry out the next launch, and close the connection without an answer."""
        self._faults.append(Loss())

    def start(self) -> None:
        """Listen, after ``stop`` on the same port again."""
        self._server = make_server("127.0.0.1", self._port, self._serve, threaded=True, request_handler=_Handler)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        self.listens = True

    def stop(self) -> None:
        """Die: refuse connections. What runs goes on."""
        self.listens = False
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- HTTP --------------------------------------------------------------------------------------------------------

    def _serve(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        request.get_data()  # what were left of it, a client would take for a broken connection
        with self._one_at_a_time:
            self.requests.append((request.method, request.path))
            fault = self._faults.pop(0) if self._faults and self.launches(request) else None
            if isinstance(fault, Refusal):
                return self.refused(fault.status, fault.text)(environ, start)
            response = self.answer(request)
        if fault is not None:
            with suppress(OSError):
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return response(environ, start)


class _Handler(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        """Nothing."""
