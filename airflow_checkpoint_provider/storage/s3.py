"""S3 and what speaks like it, as a store. Runs anywhere; needs boto3.

One primitive carries it: PutObject with ``If-None-Match: *``. What a put's answer may mean is settled by ``base.put``, so
here a put is one request; reads, listings and deletions are tried again. "Done" counts only with an ETag, since a web site
answers 200 to everything; and GET is asked, never HEAD, since only an answer with a body says *why* it failed.
"""

from __future__ import annotations

import builtins
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow_checkpoint_provider.errors import CheckpointError, CommitStateUnknown, InvalidName, NotInstalled
from airflow_checkpoint_provider.storage.base import PART, Listed, Put, Store, StoreBase, checked, is_hidden, missing
from airflow_checkpoint_provider.storage.s3_errors import Meaning, explain, meaning, not_s3
from airflow_checkpoint_provider.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    from boto3.session import Session
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 5.0  # seconds; botocore's 60 are too long for who must learn that he was replaced
READ_TIMEOUT = 20.0  # seconds between two packets
READ_TRIES = 4
CONNECTIONS = 32  # threads that may use one client at a time without waiting
PAGE = 1000  # keys that S3 lists or deletes at once, at most
LONGEST_KEY = 1024  # bytes
COPIED_AT_ONCE = 256 * 1024 * 1024  # bytes, in less than READ_TIMEOUT; with one request S3 itself copies 5 GB at most
MOST_PARTS = 10_000  # of one object
MOST_PAGES = 100_000  # of one listing; a store that goes on for ever is none


class S3Store(StoreBase):
    """The keys below ``prefix`` of a bucket. Nothing is asked of the service before the first request."""

    def __init__(self, bucket: str, prefix: str = "", settings: S3Settings | None = None) -> None:
        self.bucket, self.prefix = bucket, prefix and f"{checked(prefix)}/"
        self.settings = settings or S3Settings()
        self._root = f"{bucket}/{prefix}".rstrip("/")
        self.uri = f"s3://{self._root}"

    def create(self, key: str, body: bytes) -> Put:
        where = self._at(key)
        with self._explained("write", key):
            client = clients(self.settings).once
            try:
                answer = client.put_object(Bucket=self.bucket, Key=where, Body=body, IfNoneMatch="*")
            except Exception as error:
                became = meaning(error)
                if became is Meaning.EXISTS:
                    return Put.EXISTS
                if became in (Meaning.UNKNOWN, Meaning.DAMAGED):
                    log.info("%s/%s: it is not known whether the put was applied: %s", self.uri, key, error)
                    return Put.UNKNOWN
                raise
        if not answer.get("ETag"):
            raise CommitStateUnknown(
                f"{self.uri}/{key}: the put was answered with 200, but without the ETag that S3 gives, so it is not known"
                " what was done. Check endpoint_url: behind it is a web site, or a proxy that takes headers away"
            )
        return Put.STORED

    def read(self, key: str) -> bytes | None:
        return self._read(key)

    def _read(self, key: str, **how: str) -> bytes | None:
        where = self._at(key)
        for left in reversed(range(READ_TRIES)):
            with self._explained("read", key):
                try:
                    return self._get(where, key, how)
                except Exception as error:
                    became = meaning(error)
                    if became is Meaning.ABSENT:
                        return None
                    if became not in (Meaning.DAMAGED, Meaning.UNEXPLAINED) or not left:  # botocore retries neither
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
                raise not_s3(f"{length} bytes were asked for, {len(piece)} came", "read", self._root, key)
            yield piece

    def overwrite(self, key: str, body: bytes) -> None:
        where = self._at(key)
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
        """Whether the service can be asked to copy: it is one, and the keys for both are the same."""
        return isinstance(source, S3Store) and source.settings == self.settings

    def copy_from(self, source: S3Store, source_key: str, key: str) -> int:
        """Copy an object of the same service; no bytes come here. ``Damaged`` if it is absent. Returns its size."""
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

    def delete(self, keys: Iterable[str]) -> None:
        self._delete(map(self._at, keys))

    def delete_under(self, prefix: str) -> None:
        self._delete(key for key, _ in self._below(f"{self._at(prefix)}/"))

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        start = self._start(prefix)
        for key, size in self._below(start, after and self.prefix + after):
            name = key[len(start) :]
            if "" not in name.split("/") and not is_hidden(name):  # Hadoop marks folders by keys that end in "/"
                yield Listed(key[len(self.prefix) :], size)

    def folders(self, prefix: str) -> Iterator[str]:
        start = self._start(prefix)
        for page in self._pages(start, Delimiter="/"):
            names = (common["Prefix"][len(start) : -1] for common in page.get("CommonPrefixes", ()))
            yield from (name for name in names if name and not is_hidden(name))

    def _at(self, key: str) -> str:
        where = self.prefix + checked(key)
        if len(where.encode()) > LONGEST_KEY:
            raise InvalidName(f"{where!r} is longer than S3's {LONGEST_KEY} bytes: take a shorter root, job id or item")
        return where

    def _start(self, prefix: str) -> str:
        return f"{self._at(prefix)}/" if prefix else self.prefix

    def _explained(self, doing: str, key: str) -> AbstractContextManager[None]:
        return explained(doing, self._root, key)

    def _expect_etag(self, answer: Mapping[str, Any], doing: str, key: str) -> None:
        if not answer.get("ETag"):
            raise not_s3("the answer has no ETag", doing, self._root, key)

    def _size(self, key: str) -> int:
        """By listing, which says why it fails; ``Damaged`` if it is absent."""
        where = self._at(key)
        found, size = next(self._below(where), ("", 0))
        if found != where:
            raise missing(self.uri, key)
        return size

    def _multipart(self, where: str, send: str, parts: Iterable[Mapping[str, Any]]) -> None:
        """The object is there when all of its parts are and the last request was answered; else nothing is."""
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
            self._expect_etag(client.complete_multipart_upload(**at, MultipartUpload={"Parts": done}), "write", key)
        except BaseException:
            with suppress(Exception):  # else it waits for the bucket's lifecycle rule
                client.abort_multipart_upload(**at)
            raise

    def _get(self, where: str, key: str, how: Mapping[str, Any]) -> bytes:
        answer = clients(self.settings).patient.get_object(Bucket=self.bucket, Key=where, **how)
        with closing(answer["Body"]) as body:  # entering it would give the bare connection, which checks nothing
            self._expect_etag(answer, "read", key)
            return body.read()

    def _below(self, start: str, after: str = "") -> Iterator[tuple[str, int]]:
        """Full keys that begin with ``start``, and sizes. A listing that is out of order cannot be gone on with."""
        last = after
        for page in self._pages(start, **({"StartAfter": after} if after else {})):
            for found in page.get("Contents", ()):
                if found["Key"] <= last:
                    if found["Key"] <= after:
                        continue
                    raise not_s3("keys are not listed in the order of their bytes", "list", self._root, "")
                last = found["Key"]
                yield last, found["Size"]

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
                raise not_s3("a listing was cut without a word how to go on", "list", self._root, "")
            how["ContinuationToken"] = page["NextContinuationToken"]
        raise not_s3(f"the listing did not end after {MOST_PAGES} pages", "list", self._root, "")

    def _delete(self, keys: Iterable[str]) -> None:
        rest = iter(keys)
        while batch := list(islice(rest, PAGE)):
            for key in batch if len(batch) == 1 else self._left_of(batch):
                with self._explained("delete", key[len(self.prefix) :]):
                    clients(self.settings).patient.delete_object(Bucket=self.bucket, Key=key)

    def _left_of(self, batch: builtins.list[str]) -> builtins.list[str]:
        """Delete them with one request; returns those that have to be asked for one by one, which says why."""
        with self._explained("delete", ""):
            try:
                answer = clients(self.settings).patient.delete_objects(
                    Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True}
                )
            except Exception as error:
                if meaning(error) in (Meaning.UNSUPPORTED, Meaning.UNKNOWN):  # lacked, or too slow for so many
                    return batch
                raise
        return [failed["Key"] for failed in answer.get("Errors", ())]


def _ranges(size: int) -> Iterator[dict[str, str]]:
    """Parts of an object for the service to copy one by one."""
    step = max(COPIED_AT_ONCE, -(-size // MOST_PARTS))
    for start in range(0, size, step):
        yield {"CopySourceRange": f"bytes={start}-{min(start + step, size) - 1}"}


@contextmanager
def explained(doing: str, root: str, key: str) -> Iterator[None]:
    """What the client raises becomes the store's error, with what to do about it."""
    try:
        yield
    except CheckpointError:  # of the store that is copied from, too
        raise
    except Exception as error:
        if meaning(error) is None:
            raise
        raise explain(error, doing, root, key) from error


@dataclass(frozen=True)
class Clients:
    """``once`` sends a request one time, ``patient`` up to ``READ_TRIES`` times."""

    once: S3Client
    patient: S3Client


_made: dict[S3Settings, Clients] = {}
_making = Lock()


def clients(settings: S3Settings) -> Clients:
    """Of this process, for all its threads. Raises what botocore says of settings that cannot be."""
    made = _made.get(settings)
    if made is None:
        with _making:
            made = _made.get(settings) or _make(settings)
            _made[settings] = made
    return made


def _forget() -> None:
    """A child that used its parent's sockets would mix up the answers."""
    global _making  # noqa: PLW0603  # another thread of the parent may have held it when this process came into being
    _making = Lock()
    _made.clear()


os.register_at_fork(after_in_child=_forget)


def _make(settings: S3Settings) -> Clients:
    session = source(settings)
    if settings.role_arn:
        session = _assumed(session, settings.role_arn)
    return Clients(_client(session, settings, total_max_attempts=1), _client(session, settings, READ_TRIES))


def source(settings: S3Settings) -> Session:
    """With the credentials that are there, with which a role may have to be assumed first."""
    try:
        import boto3
    except ImportError as error:
        raise NotInstalled(
            "checkpoints in S3 need boto3 in this Python, and it cannot be imported"
            f" ({error}). Install it: pip install 'airflow-checkpoint-provider[s3]', on a Spark driver pip install boto3"
        ) from error
    return boto3.session.Session(
        aws_access_key_id=settings.access_key_id or None,
        aws_secret_access_key=settings.secret_access_key or None,
        aws_session_token=settings.session_token or None,
        region_name=settings.region_name or ("us-east-1" if settings.endpoint_url else None),
        profile_name=settings.profile_name or None,
    )


def _assumed(source: Session, role_arn: str) -> Session:
    """A session of the role: credentials are fetched with the first request, and again before they expire."""
    import boto3
    from botocore.credentials import (
        AssumeRoleCredentialFetcher,
        CredentialProvider,
        CredentialResolver,
        DeferredRefreshableCredentials,
    )
    from botocore.exceptions import NoCredentialsError
    from botocore.session import get_session

    credentials = source.get_credentials()
    if credentials is None:
        raise NoCredentialsError
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=source.client,
        source_credentials=credentials,
        role_arn=role_arn,
        extra_args={"RoleSessionName": "checkpoints"},
    )

    class Role(CredentialProvider):
        METHOD = "assume-role"

        def load(self) -> Any:
            return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method=self.METHOD)

    core = get_session()
    core.register_component("credential_provider", CredentialResolver([Role()]))
    return boto3.session.Session(botocore_session=core, region_name=source.region_name)


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
    """Without waiting for "100 Continue": our bodies are small, and who does not answer it costs a second per put."""
    params["headers"].pop("Expect", None)
