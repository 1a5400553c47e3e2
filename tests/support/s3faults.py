"""A proxy before an S3 server that hurts requests as networks and services do. Runs anywhere.

    with FaultProxy(server.url) as proxy:
        proxy.hurt("PUT", r"/journal/.*7\\.json", Harm.RESET_AFTER)
        store = open_store("s3://lake/ckp", s3=server.settings(endpoint_url=proxy.url))

It keeps the Host header, so that what was signed for the proxy is good at the server, too.
"""

from __future__ import annotations

import enum
import http.client
import re
import select
import socket
import struct
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Event, Lock, Thread, Timer
from typing import Any, Self

ONE_HOP = {"connection", "keep-alive", "te", "trailers", "transfer-encoding", "upgrade", "expect", "content-length"}
PATIENCE = 60.0  # seconds that anything here waits at most


class Harm(enum.Enum):
    """What becomes of a request. "Before" means that the server never hears of it."""

    ERROR_BEFORE = "the rule's status and code, before"
    ERROR_AFTER = "applied, then the rule's status and code"
    RESET_BEFORE = "the connection is reset, before"
    RESET_AFTER = "applied, then the connection is reset"
    SILENT_AFTER = "applied, and no answer until the client goes"
    LATE = "the connection is reset; applied after the rule's seconds, or by ``land()``"
    HELD = "applied and answered after the rule's seconds, or by ``land()``"
    TWICE = "delivered twice; the second answer comes back"
    CUT = "half of the answer's body, then the end"
    FLIPPED_BEFORE = "one bit of the request's body is another"
    FLIPPED = "one bit of the answer's body is another"
    ANSWERED = "the rule's status and body, before"
    WITHOUT_ETAG = "applied; the ETag is taken out of the answer"
    CHUNKED = "applied; the answer comes in chunks, without Content-Length"


@dataclass
class Rule:
    """Which requests to hurt, and how: by method, a pattern that is searched in the path with its query (as sent), how
    often, after letting how many pass, with which probability."""

    method: str
    path: re.Pattern[str]
    harm: Harm
    times: int
    skip: int = 0
    chance: float = 1.0
    status: int = 503
    code: str = "SlowDown"
    body: bytes = b""
    seconds: float = PATIENCE  # for ``LATE``


@dataclass(frozen=True)
class Request:
    """One that came, and what was done to it."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    harm: Harm | None = None


@dataclass(frozen=True)
class Reply:
    """``cut``: only so many bytes of the body are sent, then the connection ends; ``silent``: nothing is; ``chunked``: in chunks."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    cut: int | None = None
    silent: bool = False
    chunked: bool = False


class FaultProxy:
    """``requests`` is all that came; ``url`` is what clients take for the service."""

    def __init__(self, upstream: str, seed: int = 0) -> None:
        self.upstream = urllib.parse.urlsplit(upstream).netloc
        self.requests: list[Request] = []
        self._rules: list[Rule] = []
        self._late: list[_Late] = []
        self._random = Random(seed)
        self._lock = Lock()
        self._server = _Server(("127.0.0.1", 0), type("_Bound", (_Handler,), {"proxy": self}))
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for late in self._late:
            late.timer.cancel()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def hurt(self, method: str, path: str, harm: Harm, *, times: int = 1, **how: Any) -> None:
        """Hurt the next so many requests of this kind. Several rules are asked in the order in which they came."""
        with self._lock:
            self._rules.append(Rule(method, re.compile(path), harm, times, **how))

    def heal(self) -> None:
        """From now on all is well. What is late still lands."""
        with self._lock:
            self._rules.clear()

    def land(self) -> None:
        """Apply what is late, now; returns when the server has answered."""
        with self._lock:
            late, self._late = self._late, []
        for request in late:
            request.timer.cancel()
            request.apply()

    def handle(self, request: Request) -> Reply | None:
        """What the client gets; None for a reset."""
        rule = self._rule_for(request)
        harm = rule.harm if rule else None
        self.requests.append(replace(request, harm=harm))
        if rule is None:
            return self.forward(request)
        if harm in (Harm.ERROR_BEFORE, Harm.ANSWERED):
            return Reply(rule.status, [("Content-Type", "application/xml")], rule.body or _error(rule.code))
        if harm is Harm.LATE:
            self._postpone(lambda: self.forward(request), rule.seconds)
        if harm is Harm.HELD:
            self._hold(rule.seconds)
            return self.forward(request)
        if harm in (Harm.RESET_BEFORE, Harm.LATE):
            return None
        if harm is Harm.FLIPPED_BEFORE:
            return self.forward(replace(request, body=_flipped(request.body)))
        reply = self.forward(request)
        if harm is Harm.TWICE:
            return self.forward(request)
        return _hurt(reply, rule)

    def forward(self, request: Request) -> Reply:
        """Each on a connection of its own, which cannot be a stale one."""
        connection = http.client.HTTPConnection(self.upstream, timeout=PATIENCE)
        try:
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers:
                if name.lower() not in ONE_HOP:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body)
            answer = connection.getresponse()
            return Reply(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def _rule_for(self, request: Request) -> Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.times and rule.method == request.method and rule.path.search(request.path):
                    if rule.skip:
                        rule.skip -= 1
                    elif self._random.random() < rule.chance:
                        rule.times -= 1
                        return rule
        return None

    def _hold(self, seconds: float) -> None:
        landed = Event()
        self._postpone(landed.set, seconds)
        landed.wait()

    def _postpone(self, act: Callable[[], object], seconds: float) -> None:
        late = _Late(act, seconds)
        with self._lock:
            self._late.append(late)
        late.timer.start()


class _Late:
    """A request that lands once: by itself, or when told."""

    def __init__(self, act: Callable[[], object], seconds: float) -> None:
        self._act: Callable[[], object] | None = act
        self._lock = Lock()
        self.timer = Timer(seconds, self.apply)
        self.timer.daemon = True

    def apply(self) -> None:
        with self._lock:
            act, self._act = self._act, None
            if act:
                act()


def _hurt(reply: Reply, rule: Rule) -> Reply | None:
    """An answer on its way back."""
    match rule.harm:
        case Harm.RESET_AFTER:
            return None
        case Harm.ERROR_AFTER:
            return Reply(rule.status, [("Content-Type", "application/xml")], _error(rule.code))
        case Harm.SILENT_AFTER:
            return replace(reply, silent=True)
        case Harm.CUT:
            return replace(reply, cut=len(reply.body) // 2)
        case Harm.FLIPPED:
            return replace(reply, body=_flipped(reply.body))
        case Harm.CHUNKED:
            return replace(reply, chunked=True)
        case Harm.WITHOUT_ETAG:
            return replace(reply, headers=[pair for pair in reply.headers if pair[0].lower() != "etag"])
    raise AssertionError(rule)


def _flipped(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


def _chunks(body: bytes) -> bytes:
    middle = len(body) // 2
    parts = filter(None, (body[:middle], body[middle:]))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>as planned</Message></Error>".encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    proxy: FaultProxy

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def handle_expect_100(self) -> bool:
        going_on = super().handle_expect_100()
        self.wfile.flush()  # who sent "Expect" waits a second for this
        return going_on

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # the client has gone
            self.close_connection = True

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        reply = self.proxy.handle(Request(self.command, self.path, tuple(self.headers.items()), body))
        if reply is None:
            return self._reset()
        if reply.silent:
            select.select([self.connection], [], [], PATIENCE)  # readable when the client has gone
            self.close_connection = True
            return None
        return self._answer(reply)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = pass_on  # noqa: N815

    def _answer(self, reply: Reply) -> None:
        self.send_response_only(reply.status)
        length = str(len(reply.body))
        for name, value in reply.headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in ONE_HOP:
                self.send_header(name, value)
        if reply.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif reply.status not in (204, 304):
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(_chunks(reply.body) if reply.chunked else reply.body[: reply.cut])
        self.wfile.flush()
        if reply.cut is not None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def _reset(self) -> None:
        """Really: lingering for no time at all makes it an RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
