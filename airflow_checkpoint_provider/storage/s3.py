"""A store in S3 or a compatible service. Runs anywhere; needs boto3.

It rests on one primitive: PutObject with ``If-None-Match: *``. ``base.put`` interprets the answers of a put, so a put is one
request here; reads, listings and deletions are retried. An answer counts only with an ETag, since a web site answers 200 to
everything. GET is used, never HEAD, since only an answer with a body says *why* it failed.
"""

from __future__ import annotations

import builtins
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow_checkpoint_provider.errors import CheckpointError, CommitStateUnknown, InvalidName, StoreDenied, printable
from airflow_checkpoint_provider.storage.base import (
    PART,
    Listed,
    Put,
    Store,
    StoreBase,
    checked,
    fitting,
    is_hidden,
    missing,
    whole,
)
from airflow_checkpoint_provider.storage.s3_credentials import Access, S3Settings, access, assume_role, session_for
from airflow_checkpoint_provider.storage.s3_errors import Meaning, explain, meaning, not_s3

if TYPE_CHECKING:
    from boto3.session import Session
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 5.0  # seconds; botocore's 60 are too long for a driver that must learn that it was replaced
READ_TIMEOUT = 20.0  # seconds between two packets
READ_TRIES = 4
CONNECTIONS = 32  # threads that can use one client at a time without waiting
PAGE = 1000  # keys that S3 lists or deletes at once, at most
LONGEST_KEY = 1024  # bytes
COPIED_AT_ONCE = 256 * 1024 * 1024  # bytes, copied in less than READ_TIMEOUT; S3 copies at most 5 GB with one request
MOST_PARTS = 10_000  # of one object
MOST_PAGES = 100_000  # of one listing; protects from a service whose listing never ends


class S3Store(StoreBase):
    """The keys below ``prefix`` of a bucket. No request is sent before the first method is called."""

    def __init__(self, bucket: str, prefix: str = "", settings: S3Settings | None = None) -> None:
        self.bucket, self.prefix = bucket, prefix and f"{checked(prefix)}/"
        self.settings = settings or S3Settings()
        self._root = f"{bucket}/{prefix}".rstrip("/")
        self.uri = f"s3://{self._root}"

    def create(self, key: str, body: bytes) -> Put:
        where, body = self._at(key), fitting(body, self.uri, key)
        with self._explained("write", key):
            client = clients(self.settings).once
            try:
                answer = client.put_object(Bucket=self.bucket, Key=where, Body=body, IfNoneMatch="*")
            except Exception as error:
                became = meaning(error)
                if became is Meaning.EXISTS:
                    return Put.EXISTS
                if became in (Meaning.UNKNOWN, Meaning.DAMAGED):
                    log.info("%s/%s: the outcome of the put is unknown: %s", self.uri, key, printable(str(error)))
                    return Put.UNKNOWN
                raise
        if not answer.get("ETag"):
            raise CommitStateUnknown(
                f"{self.uri}/{key}: the outcome of the put is unknown, because its answer 200 has no ETag."
                " Check endpoint_url: it leads to a web site, or to a proxy that removes headers"
            )
        return Put.STORED

    def read(self, key: str) -> bytes | None:
        return self._read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes | None:
        piece = self._read(key, Range=f"bytes={start}-{start + length - 1}")
        if piece is not None and len(piece) > length:
            raise not_s3(f"{length} bytes were requested, {len(piece)} came", "read", self._root, key)
        return piece

    def _read(self, key: str, **how: str) -> bytes | None:
        where = self._at(key)
        for remaining in reversed(range(READ_TRIES)):
            with self._explained("read", key):
                try:
                    return self._get(where, key, how)
                except Exception as error:
                    outcome = meaning(error)
                    if outcome is Meaning.ABSENT:
                        return None
                    retried_here = outcome in (Meaning.DAMAGED, Meaning.UNEXPLAINED)  # botocore retries neither
                    if not (retried_here and remaining):
                        raise
        raise AssertionError  # the last try returns or raises

    def parts(self, key: str) -> Iterator[bytes]:
        size = self._size(key)
        for start in range(0, size, PART):
            length = min(PART, size - start)
            piece = self._read(key, **({"Range": f"bytes={start}-{start + length - 1}"} if size > PART else {}))
            if piece is None:
                raise missing(self.uri, key)
            if len(piece) != length:
                raise not_s3(f"{length} bytes were requested, {len(piece)} came", "read", self._root, key)
            yield piece

    def overwrite(self, key: str, body: bytes) -> None:
        where, body = self._at(key), fitting(body, self.uri, key)
        with self._explained("write", key):
            answer = clients(self.settings).patient.put_object(Bucket=self.bucket, Key=where, Body=body)
        self._expect_etag(answer, "write", key)

    def assemble(self, key: str, parts: Iterable[bytes]) -> None:
        rest = iter(parts)
        begin = [*islice(rest, 2)]
        if len(begin) < 2:
            self.overwrite(key, b"".join(begin))
        else:
            where = self._at(key)
            with self._explained("write", key):
                self._multipart(where, "upload_part", ({"Body": piece} for piece in chain(begin, rest)))

    def copies_from(self, source: Store) -> TypeGuard[S3Store]:
        """Return whether the service itself can copy: both stores are in it, with the same credentials."""
        return isinstance(source, S3Store) and source.settings == self.settings

    def copy_from(self, source: S3Store, source_key: str, key: str) -> int:
        """Let the service copy an object, and return its size in bytes. Raises ``Damaged`` if it is absent."""
        where, size = self._at(key), source._size(source_key)
        origin = {"Bucket": source.bucket, "Key": source._at(source_key)}
        with self._explained("copy", key):
            try:
                if size <= COPIED_AT_ONCE:
                    client: Any = clients(self.settings).patient
                    answer = client.copy_object(Bucket=self.bucket, Key=where, CopySource=origin)
                    self._expect_etag(answer.get("CopyObjectResult", {}), "copy", key)
                else:
                    self._multipart(
                        where, "upload_part_copy", ({"CopySource": origin, **part} for part in _ranges(size))
                    )
            except Exception as error:
                if meaning(error) is Meaning.ABSENT:
                    raise missing(source.uri, source_key) from error
                raise
        return size

    def publish(self, key: str, new: str) -> bool:
        size = self._size_if_there(key)
        if size is None:
            return False
        parts = ({"CopySource": {"Bucket": self.bucket, "Key": self._at(key)}, **part} for part in _ranges(size))
        with self._explained("copy", new):
            try:
                self._multipart(self._at(new), "upload_part_copy", parts)
            except Exception:
                # Services answer differently to a copy of nothing, and to an upload that another process has ended
                if self._size_if_there(key) is None:
                    return False
                raise
        return True

    def _size_if_there(self, key: str) -> int | None:
        where = self._at(key)
        found, size = next(self._below(where), ("", 0))
        return size if found == where else None

    def end_uploads(self, keys: Iterable[str]) -> None:
        for where in map(self._at, keys):
            with self._explained("end uploads below", ""):
                self._end_uploads(where)

    def _end_uploads(self, where: str) -> None:
        """End the uploads of one key. MinIO lists the uploads of an exact name, and none below a prefix."""
        client: Any = clients(self.settings).patient
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=where):
            for upload in (upload for upload in page.get("Uploads", ()) if upload["Key"] == where):
                with suppress(client.exceptions.NoSuchUpload):  # another process has ended it, or the answer was lost
                    client.abort_multipart_upload(Bucket=self.bucket, Key=where, UploadId=upload["UploadId"])

    def delete(self, keys: Iterable[str]) -> None:
        self._delete(map(self._at, keys))

    def delete_under(self, prefix: str) -> None:
        self._delete(key for key, _ in self._below(f"{self._at(prefix)}/"))

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        start = self._start(prefix)
        for key, size in self._below(start, after and self.prefix + after):
            name = key[len(start) :]
            if _is_name(name) and not is_hidden(name):
                yield Listed(key[len(self.prefix) :], size)

    def hidden(self, prefix: str) -> Iterator[str]:
        start = self._start(prefix)
        for page in self._pages(f"{start}.", Delimiter="/"):
            keys = (found["Key"] for found in page.get("Contents", ()))
            yield from (key[len(self.prefix) :] for key in keys if _is_name(key[len(start) :]))

    def folders(self, prefix: str) -> Iterator[str]:
        start = self._start(prefix)
        for page in self._pages(start, Delimiter="/"):
            names = (common["Prefix"][len(start) : -1] for common in page.get("CommonPrefixes", ()))
            yield from (name for name in names if _is_name(name) and not is_hidden(name))

    def access(self) -> Access:
        """Return how boto3 reaches the bucket, for Spark's S3A. Raises ``StoreMisconfigured`` without credentials."""
        with self._explained("read", ""):
            return access(self.uri, self.settings, clients(self.settings).patient)

    def _at(self, key: str) -> str:
        where = self.prefix + checked(key)
        if len(where.encode()) > LONGEST_KEY:
            raise InvalidName(f"{where!r} is longer than S3's {LONGEST_KEY} bytes. Use a shorter root or job id")
        return where

    def _start(self, prefix: str) -> str:
        return f"{self._at(prefix)}/" if prefix else self.prefix

    @contextmanager
    def _explained(self, doing: str, key: str) -> Iterator[None]:
        """Raise errors of the client as errors of the store, with what to do about them."""
        try:
            yield
        except CheckpointError:  # also of the store that is copied from
            raise
        except Exception as error:
            error.args = (printable(str(error)),)  # a traceback shows it, too
            explained = explain(error, doing, self._root, key)
            if isinstance(explained, StoreDenied):
                _made.pop(self.settings, None)  # keys may be renewed in a file: the next request reads it again
            raise explained from error

    def _expect_etag(self, answer: Mapping[str, Any], doing: str, key: str) -> None:
        if not answer.get("ETag"):
            raise not_s3("the answer has no ETag", doing, self._root, key)

    def _size(self, key: str) -> int:
        """Return the size of an object by a listing, whose errors say why. Raises ``Damaged`` if it is absent."""
        if (size := self._size_if_there(key)) is None:
            raise missing(self.uri, key)
        return size

    def _multipart(self, where: str, send: str, parts: Iterable[Mapping[str, Any]]) -> None:
        """Write an object in parts. It exists only after the last request was answered."""
        client: Any = clients(self.settings).patient
        at, key = {"Bucket": self.bucket, "Key": where}, where[len(self.prefix) :]
        at["UploadId"] = client.create_multipart_upload(**at)["UploadId"]
        try:
            done = []
            for number, part in enumerate(parts, 1):
                answer = getattr(client, send)(**at, PartNumber=number, **part)
                answer = answer.get("CopyPartResult", answer)
                self._expect_etag(answer, "write", key)
                done.append({"PartNumber": number, "ETag": answer["ETag"]})
            answer = client.complete_multipart_upload(**at, MultipartUpload={"Parts": done})
            if answer.get("Key") != where:  # Ceph 16 leaves the ETag empty
                self._expect_etag(answer, "write", key)
        except BaseException:
            with suppress(Exception):  # else the bucket's lifecycle rule removes the parts
                client.abort_multipart_upload(**at)
            raise

    def _get(self, where: str, key: str, how: Mapping[str, Any]) -> bytes:
        answer = clients(self.settings).patient.get_object(Bucket=self.bucket, Key=where, **how)
        # The body itself, as a context manager, would return the bare connection, which checks nothing.
        with closing(answer["Body"]) as body:
            self._expect_etag(answer, "read", key)
            if how:  # a range
                return body.read()
            size = answer.get("ContentLength", 0)  # absent if the answer comes in chunks
            return whole(body.read, self.uri, key, size)

    def _below(self, start: str, after: str = "") -> Iterator[tuple[str, int]]:
        """Yield the full keys that begin with ``start``, and their sizes. Raises an error if the listing is out of order."""
        last = after
        for page in self._pages(start, **({"StartAfter": after} if after else {})):
            for item in page.get("Contents", ()):
                if item["Key"] <= last:
                    if item["Key"] <= after:
                        continue
                    raise not_s3(
                        "keys are not listed in the order of their bytes, as in a directory bucket",
                        "list",
                        self._root,
                        "",
                    )
                last = item["Key"]
                yield last, item["Size"]

    def _pages(self, start: str, **how: Any) -> Iterator[ListObjectsV2OutputTypeDef]:
        for _ in range(MOST_PAGES):
            with self._explained("list", start[len(self.prefix) :]):
                page = clients(self.settings).patient.list_objects_v2(
                    Bucket=self.bucket, Prefix=start, MaxKeys=PAGE, **how
                )
            if not page.get("Name"):
                raise not_s3("the answer to a listing does not name the bucket", "list", self._root, "")
            yield page
            if not page.get("IsTruncated"):
                return
            if not page.get("NextContinuationToken"):
                raise not_s3("a listing was cut without a continuation token", "list", self._root, "")
            how["ContinuationToken"] = page["NextContinuationToken"]
        raise not_s3(f"the listing did not end after {MOST_PAGES} pages", "list", self._root, "")

    def _delete(self, keys: Iterable[str]) -> None:
        rest = iter(keys)
        while batch := list(islice(rest, PAGE)):
            for key in batch if len(batch) == 1 else self._delete_batch(batch):
                with self._explained("delete", key[len(self.prefix) :]):
                    clients(self.settings).patient.delete_object(Bucket=self.bucket, Key=key)

    def _delete_batch(self, batch: builtins.list[str]) -> builtins.list[str]:
        """Delete the keys with one request. Return those that are left to be deleted one by one, whose errors say why."""
        with self._explained("delete", ""):
            try:
                answer = clients(self.settings).patient.delete_objects(
                    Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True}
                )
            except Exception as error:
                # Not supported, or too slow for so many keys
                if meaning(error) in (Meaning.UNSUPPORTED, Meaning.UNKNOWN):
                    return batch
                raise
        return [failed["Key"] for failed in answer.get("Errors", ())]


def _is_name(key: str) -> bool:
    """Return whether a store may use the key. Hadoop marks folders by keys that end in ``/``, and others may use any other text."""
    try:
        return bool(checked(key))
    except InvalidName:
        return False


def _ranges(size: int) -> Iterator[dict[str, str]]:
    """Yield the parts of an object that the service copies one by one. A single one has no range: S3 wants it of large objects only."""
    if size <= COPIED_AT_ONCE:
        yield {}
        return
    step = max(COPIED_AT_ONCE, -(-size // MOST_PARTS))
    for start in range(0, size, step):
        yield {"CopySourceRange": f"bytes={start}-{min(start + step, size) - 1}"}


@dataclass(frozen=True)
class Clients:
    """Two clients: ``once`` sends a request one time, ``patient`` up to ``READ_TRIES`` times."""

    once: S3Client
    patient: S3Client


_made: dict[S3Settings, Clients] = {}
_making = Lock()


def clients(settings: S3Settings) -> Clients:
    """Return the clients of this process, for all its threads. Raises what botocore raises for invalid settings."""
    made = _made.get(settings)
    if made is None:
        with _making:
            made = _made.get(settings) or _make(settings)
            _made[settings] = made
    return made


def _forget() -> None:
    """Forget the clients in a forked child, which would mix up answers on its parent's sockets."""
    global _making  # noqa: PLW0603  # another thread of the parent may have held it when this process was forked
    _making = Lock()
    _made.clear()


os.register_at_fork(after_in_child=_forget)


def _make(settings: S3Settings) -> Clients:
    session = session_for(settings)
    if settings.role_arn:
        session = assume_role(session, settings.role_arn)
    return Clients(_client(session, settings, total_max_attempts=1), _client(session, settings, READ_TRIES))


def _client(session: Session, settings: S3Settings, total_max_attempts: int) -> S3Client:
    from botocore.config import Config

    style: Any = settings.addressing_style or ("path" if settings.endpoint_url else "auto")
    client = session.client(
        "s3",
        endpoint_url=settings.endpoint_url,
        verify=settings.verify,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": style},
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            max_pool_connections=CONNECTIONS,
            tcp_keepalive=True,  # a firewall drops the idle connections of a long job
            retries={"mode": "standard", "total_max_attempts": total_max_attempts},
            request_checksum_calculation="when_required",  # a plain body with a signed digest, which every store takes
            response_checksum_validation="when_supported",
        ),
    )
    client.meta.events.register_last("before-call.s3", _send_at_once)
    return client


def _send_at_once(params: dict[str, Any], **_: object) -> None:
    """Send the body without waiting for "100 Continue": bodies are small, and a service without it costs a second per put."""
    params["headers"].pop("Expect", None)
