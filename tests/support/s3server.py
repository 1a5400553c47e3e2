"""An authenticated S3 endpoint for tests, right also where writers race: moto's S3 behind two walls. Runs anywhere.

    with S3Server() as server:
        server.make_bucket("lake")
        store = open_store("s3://lake/ckp", s3=server.settings())

moto looks whether a key is there and writes it in two steps on many threads, so one lock surrounds each request; and moto
lets everyone in, so a gate checks signatures as S3 does, with S3's own codes. All is in memory and in this process; others
reach it over HTTP. It is kinder than S3 in what it does not check: checksums, pages and deletions above 1,000 keys.
"""

from __future__ import annotations

import io
import ssl
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Self

import boto3
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from airflow_checkpoint_provider.storage import S3Settings
from tests.support.s3signatures import Signed, is_genuine, signed, signing_key, wrong_body

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from mypy_boto3_s3 import S3Client

REGION = "us-east-1"
SKEW = 900  # seconds that a client's clock may differ


def everything(method: str, path: str) -> bool:
    """The policy of a key that may do all."""
    return True


def reading(method: str, path: str) -> bool:
    """The policy of a read-only key."""
    return method in ("GET", "HEAD")


@dataclass
class Key:
    """An access key. ``may`` is its policy; ``token`` makes it a session, which ends at ``expires``, a Unix time.

    Who may not list (``lists``) hears "denied" of an absent key, as in S3.
    """

    secret: str
    token: str = ""
    expires: float = float("inf")
    may: Callable[[str, str], bool] = everything
    lists: bool = True


class S3Server:
    """``keys`` by id, to be changed at any time; ``clock`` is the server's; ``requests`` counts those of each kind.

    ``obeys_conditions=False`` makes it overwrite, as stores do that do not know ``If-None-Match``. With a ``certificate``,
    a file with its key in it, it speaks https.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.keys = {"WRITER": Key("writer-secret")}
        self.clock: Callable[[], float] = time.time
        self.obeys_conditions = True
        self.requests: Counter[str] = Counter()
        self._app: WSGIApplication = create_backend_app("s3")
        self._one_at_a_time = Lock()
        tls = None
        if certificate:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(certificate)
        self._server = make_server(
            "127.0.0.1", 0, self._serve, threaded=True, request_handler=_Handler, ssl_context=tls
        )
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        self._verify = str(certificate) if certificate else None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def settings(self, key_id: str = "WRITER", **other: Any) -> S3Settings:
        """To reach this server with one of its keys."""
        key = self.keys[key_id]
        known = {
            "endpoint_url": self.url, "access_key_id": key_id, "secret_access_key": key.secret, "session_token": key.token,
        }  # fmt: skip
        return S3Settings(**known | other)

    def environment(self, key_id: str = "WRITER") -> dict[str, str]:
        """The variables by which programs of AWS reach it with one of its keys, and nothing of this machine's settings."""
        key = self.keys[key_id]
        token = {"AWS_SESSION_TOKEN": key.token} if key.token else {}
        return {
            "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": key.secret, **token,
            "AWS_REGION": REGION, "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    def connection(self, root: str, key_id: str = "WRITER") -> dict[str, Any]:
        """Of Airflow, as JSON, to checkpoints below ``root``."""
        keys = {"login": key_id, "password": self.keys[key_id].secret}
        return {"conn_type": "checkpoint_storage", **keys, "extra": {"root": root, "endpoint_url": self.url}}

    @cached_property
    def client(self) -> S3Client:
        """One with boto3's defaults, of which the store knows nothing."""
        return boto3.Session().client(
            "s3", endpoint_url=self.url, verify=self._verify, region_name=REGION, aws_access_key_id="WRITER",
            aws_secret_access_key=self.keys["WRITER"].secret,
        )  # fmt: skip

    def make_bucket(self, name: str) -> None:
        self.client.create_bucket(Bucket=name)

    def empty_bucket(self, name: str) -> None:
        """Delete all objects, also those that stand for folders."""
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for listed in page.get("Contents", ()):
                self.client.delete_object(Bucket=name, Key=listed["Key"])

    def _serve(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        request = _Request(environ)
        with self._one_at_a_time:
            self.requests[request.kind] += 1
            refused = self._refused(request)
            if refused:
                return _refuse(refused, request.method, start)
            if not self.obeys_conditions:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            answers: list[tuple[Any, ...]] = []
            body = b"".join(self._app(environ, lambda *answer: answers.append(answer)))  # type: ignore[arg-type]
        status, headers = answers[0][:2]
        if status.startswith("404") and request.signed and not self.keys[request.signed.key_id].lists:
            return _refuse((403, "AccessDenied"), request.method, start)
        start(status, headers)
        return [body]

    def _refused(self, request: _Request) -> tuple[int, str] | None:
        sent = request.signed
        if sent is None:
            return 403, "AccessDenied"
        key = self.keys.get(sent.key_id)
        if key is None:
            return 403, "InvalidAccessKeyId"
        secret = signing_key(key.secret, sent)
        if not is_genuine(sent, secret, request.method, request.path, request.query, request.header):
            return 403, "SignatureDoesNotMatch"
        if refused := self._out_of_time(sent, key):
            return refused
        if wrong := wrong_body(sent, secret, request.body, int(request.header("x-amz-decoded-content-length") or 0)):
            return 403 if wrong == "SignatureDoesNotMatch" else 400, wrong
        path = urllib.parse.unquote(request.path)
        if not key.may(request.method, path) or (request.kind == "LIST" and not key.lists):
            return 403, "AccessDenied"
        return None

    def _out_of_time(self, sent: Signed, key: Key) -> tuple[int, str] | None:
        now = self.clock()
        if sent.life is None and abs(now - sent.sent) > SKEW:
            return 403, "RequestTimeTooSkewed"
        if sent.life is not None and now > sent.sent + sent.life:
            return 403, "AccessDenied"
        if key.token != sent.token:
            return 400, "InvalidToken"
        return (400, "ExpiredToken") if now > key.expires else None


class _Request:
    """What the gate looks at. The whole body is read: what were left of it would be taken for the next request."""

    def __init__(self, environ: WSGIEnvironment) -> None:
        self._environ = environ
        self.method: str = environ["REQUEST_METHOD"]
        self.path, _, query = environ["REQUEST_URI"].partition("?")
        self.query = [(name, value) for name, _, value in (pair.partition("=") for pair in query.split("&") if pair)]
        self.body = self._read()
        self.signed = signed(self.header, self.query)

    @property
    def kind(self) -> str:
        """The method; ``LIST`` and ``COPY`` where it is one."""
        if self.method == "GET" and "/" not in self.path.strip("/"):
            return "LIST"
        return "COPY" if self.method == "PUT" and self.header("x-amz-copy-source") else self.method

    def header(self, name: str) -> str:
        """Empty if it was not sent."""
        name = name.upper().replace("-", "_")
        return str(self._environ.get(f"HTTP_{name}") or self._environ.get(name) or "")

    def _read(self) -> bytes:
        stream = self._environ["wsgi.input"]
        if self.header("transfer-encoding").lower() == "chunked":  # of HTTP, undone by werkzeug; aws-chunked is not
            body: bytes = stream.read()
            del self._environ["HTTP_TRANSFER_ENCODING"]
            self._environ["CONTENT_LENGTH"] = str(len(body))
        else:
            body = stream.read(int(self.header("content-length") or 0))
        self._environ["wsgi.input"] = io.BytesIO(body)
        return body


def _refuse(refused: tuple[int, str], method: str, start: StartResponse) -> list[bytes]:
    status, code = refused
    error = (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()
    )
    body = b"" if method == "HEAD" else error  # as S3: no body, so no code
    start(f"{status} {code}", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as S3 keeps them
    disable_nagle_algorithm = True

    def log_request(self, *_: object) -> None:
        """Nothing."""

    def handle_expect_100(self) -> bool:
        return True  # werkzeug sends the 100 itself, and would do so twice
