"""Signature Version 4 as a server checks it: headers, presigned URLs, and the chunks of streamed bodies. Runs anywhere."""

from __future__ import annotations

import base64
import calendar
import hashlib
import hmac
import time
import urllib.parse
import zlib
from collections.abc import Callable
from dataclasses import dataclass

ALGORITHM = "AWS4-HMAC-SHA256"
NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Signed:
    """What a request says of its own signature."""

    key_id: str
    date: str
    region: str
    service: str
    headers: str  # signed ones, joined by ";"
    signature: str
    at: str  # as 20261120T000000Z
    payload: str  # SHA-256 of the body, or how the body is signed
    token: str
    life: int | None  # seconds that a presigned URL is good for

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"

    @property
    def sent(self) -> float:
        return calendar.timegm(time.strptime(self.at, "%Y%m%dT%H%M%SZ"))


Pairs = list[tuple[str, str]]


def signed(header: Callable[[str], str], query: Pairs) -> Signed | None:
    """None for a request without a signature of this version. ``query`` is as it was sent, not unquoted."""
    authorization = header("authorization")
    asked = {urllib.parse.unquote(name): urllib.parse.unquote(value) for name, value in query}
    if authorization.startswith(f"{ALGORITHM} "):
        parts = authorization[len(ALGORITHM) + 1 :].split(",")
        fields = dict(part.strip().split("=", 1) for part in parts)
        at, payload, token, life = (
            header("x-amz-date"),
            header("x-amz-content-sha256"),
            header("x-amz-security-token"),
            None,
        )
    elif "X-Amz-Signature" in asked:
        fields = {name: asked[f"X-Amz-{name}"] for name in ("Credential", "SignedHeaders", "Signature")}
        at, payload, life = asked["X-Amz-Date"], "UNSIGNED-PAYLOAD", int(asked["X-Amz-Expires"])
        token = asked.get("X-Amz-Security-Token", "")
    else:
        return None
    key_id, date, region, service, _ = fields["Credential"].split("/")
    return Signed(key_id, date, region, service, fields["SignedHeaders"], fields["Signature"], at, payload, token, life)


def signing_key(secret: str, request: Signed) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in request.scope.split("/"):
        key = _hmac(key, part)
    return key


def is_genuine(request: Signed, key: bytes, method: str, path: str, query: Pairs, header: Callable[[str], str]) -> bool:
    """Whether who sent this knew the secret. ``path`` is as it was sent."""
    pairs = sorted(pair for pair in query if pair[0] != "X-Amz-Signature")
    names = request.headers.split(";")
    canonical = "\n".join([
        method, path, "&".join(f"{name}={value}" for name, value in pairs),
        "".join(f"{name}:{' '.join(header(name).split())}\n" for name in names), request.headers, request.payload,
    ])  # fmt: skip
    text = "\n".join([ALGORITHM, request.at, request.scope, hashlib.sha256(canonical.encode()).hexdigest()])
    return hmac.compare_digest(_hmac(key, text).hex(), request.signature)


def wrong_body(request: Signed, key: bytes, body: bytes, decoded: int) -> str | None:
    """S3's code for a body that is not the one that was signed; ``decoded`` is its length without chunk headers."""
    if len(request.payload) == 64:
        return None if hashlib.sha256(body).hexdigest() == request.payload else "XAmzContentSHA256Mismatch"
    if request.payload.startswith("STREAMING-"):
        try:
            return _wrong_chunks(request, key, body, decoded)
        except (ValueError, IndexError):
            return "IncompleteBody"
    return None


def _wrong_chunks(request: Signed, key: bytes, body: bytes, decoded: int) -> str | None:
    """Chunks of ``aws-chunked``, each signed over the signature before it, and then perhaps a signed trailer."""
    previous, at, data = request.signature, 0, b""
    is_signed = ALGORITHM in request.payload
    size = -1
    while size:
        end = body.index(b"\r\n", at)
        length, _, extension = body[at:end].decode().partition(";")
        size = int(length, 16)
        chunk = body[end + 2 : end + 2 + size]
        if is_signed:
            previous = _chain(request, key, "PAYLOAD", previous, NOTHING, hashlib.sha256(chunk).hexdigest())
            if extension != f"chunk-signature={previous}":
                return "SignatureDoesNotMatch"
        data += chunk
        at = end + 2 + size + (2 if size else 0)
    if len(data) != decoded:
        return "IncompleteBody"
    return _wrong_trailer(request, key, body[at:], data, previous) if request.payload.endswith("-TRAILER") else None


def _wrong_trailer(request: Signed, key: bytes, rest: bytes, data: bytes, previous: str) -> str | None:
    lines = dict(line.partition(b":")[::2] for line in rest.strip(b"\r\n").split(b"\r\n"))
    signature = lines.pop(b"x-amz-trailer-signature", b"").decode()
    crc32 = lines.get(b"x-amz-checksum-crc32")
    if crc32 is not None and base64.b64encode(zlib.crc32(data).to_bytes(4, "big")) != crc32.strip():
        return "BadDigest"
    canonical = b"".join(name.strip() + b":" + value.strip() + b"\n" for name, value in lines.items())
    expected = _chain(request, key, "TRAILER", previous, hashlib.sha256(canonical).hexdigest())
    return "SignatureDoesNotMatch" if ALGORITHM in request.payload and signature != expected else None


def _chain(request: Signed, key: bytes, what: str, previous: str, *digests: str) -> str:
    return _hmac(key, "\n".join([f"{ALGORITHM}-{what}", request.at, request.scope, previous, *digests])).hex()


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
