"""The S3 server of the tests accepts the requests that S3 accepts, and no others. Runs anywhere."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from airflow_checkpoint_provider.storage import Put, S3Store
from tests.support.s3server import REGION, Key, S3Server, reading

BUCKET = "lake-of-the-server"
DATA = b"rows " * 5_000
NOTHING = hashlib.sha256(b"").hexdigest()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        server.make_bucket(BUCKET)
        yield server


def client(server: S3Server, key_id: str = "WRITER", **other: Any) -> Any:
    known = {"aws_access_key_id": key_id, "aws_secret_access_key": server.keys["WRITER"].secret, "region_name": REGION}
    return boto3.Session().client("s3", endpoint_url=server.url, **known | other)


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_boto3_with_its_defaults_is_accepted(server: S3Server) -> None:
    server.client.put_object(Bucket=BUCKET, Key="a/ü b+c", Body=DATA, Metadata={"note": "two  spaces"})
    assert server.client.get_object(Bucket=BUCKET, Key="a/ü b+c")["Body"].read() == DATA
    server.client.head_object(Bucket=BUCKET, Key="a/ü b+c")


def test_uploads_in_parts_are_accepted(server: S3Server) -> None:
    upload = server.client.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
    part = server.client.upload_part(Bucket=BUCKET, Key="parts", UploadId=upload, PartNumber=1, Body=DATA)
    server.client.complete_multipart_upload(
        Bucket=BUCKET, Key="parts", UploadId=upload,
        MultipartUpload={"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]},
    )  # fmt: skip
    assert server.client.get_object(Bucket=BUCKET, Key="parts")["Body"].read() == DATA


def test_wrong_secret_is_refused(server: S3Server) -> None:
    for other, code in (
        ({"aws_secret_access_key": "guessed"}, "SignatureDoesNotMatch"),
        ({"aws_access_key_id": "NOBODY"}, "InvalidAccessKeyId"),
        ({"aws_session_token": "guessed"}, "InvalidToken"),
        ({"config": Config(signature_version="s3")}, "AccessDenied"),
    ):
        with pytest.raises(ClientError, match=code):
            client(server, **other).list_objects_v2(Bucket=BUCKET)
    assert status(f"{server.url}/{BUCKET}") == 403


def test_presigned_url_is_valid_for_its_key_and_time(server: S3Server) -> None:
    server.client.put_object(Bucket=BUCKET, Key="signed", Body=DATA)
    url = client(server, config=Config(signature_version="s3v4")).generate_presigned_url(
        "get_object", Params={"Bucket": BUCKET, "Key": "signed"}, ExpiresIn=60
    )
    assert status(url) == 200
    assert status(url.replace("/signed", "/other")) == 403
    assert status(url.replace("Expires=60", "Expires=600")) == 403
    server.clock = lambda: time.time() + 120
    try:
        assert status(url) == 403
    finally:
        server.clock = time.time


def test_policy_of_a_key_is_enforced(server: S3Server) -> None:
    server.keys["READER"] = Key("s", may=reading)
    server.keys["OTHERS"] = Key("s", may=lambda _, path: not path.startswith(f"/{BUCKET}"))
    with pytest.raises(ClientError, match="AccessDenied"):
        client(server, "READER", aws_secret_access_key="s").put_object(Bucket=BUCKET, Key="a", Body=b"x")
    with pytest.raises(ClientError, match="AccessDenied"):
        client(server, "OTHERS", aws_secret_access_key="s").list_objects_v2(Bucket=BUCKET)


# -- bodies in signed chunks, as Hadoop sends them -----------------------------------------------------------------------


class Streaming(S3SigV4Auth):
    """Signs a request whose body is signed by itself."""

    kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"

    def payload(self, request: AWSRequest) -> str:
        return self.kind


class Chunked:
    """One put in chunks, with its signatures; ``corrupt`` spoils it before it is sent."""

    def __init__(self, server: S3Server, key: str, *, trailer: bool = False) -> None:
        self.server, self.path, self.trailer = server, f"/{BUCKET}/{key}", trailer
        request = AWSRequest("PUT", server.url + self.path, headers={"x-amz-decoded-content-length": str(len(DATA))})
        auth = Streaming(Credentials("WRITER", server.keys["WRITER"].secret), "s3", REGION)
        auth.kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" + ("-TRAILER" if trailer else "")
        auth.add_auth(request)
        self.headers = {name: value for name, value in request.headers.items() if isinstance(value, str)}
        self.at = str(request.context["timestamp"])
        self.signature = self.headers["Authorization"].rpartition("Signature=")[2]
        self.body = self._body()

    def put(self) -> int:
        connection = http.client.HTTPConnection(self.server.url.removeprefix("http://"), timeout=30)
        connection.request("PUT", self.path, self.body, {**self.headers, "Content-Encoding": "aws-chunked"})
        try:
            return connection.getresponse().status
        finally:
            connection.close()

    def _body(self) -> bytes:
        body = b"".join(self._chunk(chunk) for chunk in (DATA[:10_000], DATA[10_000:], b""))
        if not self.trailer:
            return body + b"\r\n"
        checksum = b"x-amz-checksum-crc32:" + base64.b64encode(zlib.crc32(DATA).to_bytes(4, "big"))
        self._sign("TRAILER", hashlib.sha256(checksum + b"\n").hexdigest())
        return body + checksum + b"\r\nx-amz-trailer-signature:" + self.signature.encode() + b"\r\n\r\n"

    def _chunk(self, data: bytes) -> bytes:
        self._sign("PAYLOAD", NOTHING, hashlib.sha256(data).hexdigest())
        head = f"{len(data):x};chunk-signature={self.signature}\r\n".encode()
        return head + (data + b"\r\n" if data else b"")

    def _sign(self, what: str, *digests: str) -> None:
        day = self.at[:8]
        key = f"AWS4{self.server.keys['WRITER'].secret}".encode()
        for part in (day, REGION, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        text = "\n".join(
            [f"AWS4-HMAC-SHA256-{what}", self.at, f"{day}/{REGION}/s3/aws4_request", self.signature, *digests]
        )
        self.signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize("trailer", [False, True])
def test_signed_chunks_are_stored_without_their_headers(server: S3Server, trailer: bool) -> None:
    assert Chunked(server, "chunks", trailer=trailer).put() == 200
    assert server.client.get_object(Bucket=BUCKET, Key="chunks")["Body"].read() == DATA


@pytest.mark.parametrize(
    ("found", "instead", "expected"),
    [
        (b"rows rows", b"rows r0ws", 403),
        (b"chunk-signature=", b"chunk-signature=0", 403),
        (b"2710;", b"270f;", 403),
        (b"crc32:", b"crc32:A", 400),
        (b"trailer-signature:", b"trailer-signature:0", 403),
    ],
)
def test_changed_chunks_are_refused(server: S3Server, found: bytes, instead: bytes, expected: int) -> None:
    put = Chunked(server, "spoilt", trailer=True)
    put.body = put.body.replace(found, instead, 1)
    assert put.put() == expected
    assert "Contents" not in server.client.list_objects_v2(Bucket=BUCKET, Prefix="spoilt")


def test_missing_chunks_are_refused(server: S3Server) -> None:
    put = Chunked(server, "short")
    put.body = put.body[: put.body.index(b"\r\n", 200) + 2]  # the first is whole
    assert put.put() == 400


def test_server_can_be_told_to_overwrite(server: S3Server) -> None:
    store = S3Store(BUCKET, "told", server.settings())
    assert [store.create("a", b"1"), store.create("a", b"2")] == [Put.STORED, Put.EXISTS]
    server.obeys_conditions = False
    try:
        assert store.create("a", b"2") is Put.STORED
    finally:
        server.obeys_conditions = True
