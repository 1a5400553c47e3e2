"""Errors of S3: each refusal has its own error and advice, and none is taken for "absent". Runs anywhere."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import (
    CommitStateUnknown,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from airflow_checkpoint_provider.storage import Put, S3Settings, S3Store, probe
from airflow_checkpoint_provider.storage import s3 as module
from airflow_checkpoint_provider.storage.s3_errors import Meaning, meaning
from tests.support.processes import free_port
from tests.support.s3faults import FaultProxy, Harm
from tests.support.s3server import Key, S3Server, reading
from tests.unit.storage.s3_acts import ACTS, EACH, SECRET, refusal

pytestmark = pytest.mark.usefixtures("virtual_time")


@EACH
def test_wrong_secret_is_denied(s3: S3Server, bucket: str, act: Callable[[S3Store], object]) -> None:
    store = S3Store(bucket, "ckp", s3.settings(secret_access_key="another"))
    message = refusal(act, store, StoreDenied)
    assert "SignatureDoesNotMatch (403)" in message
    assert "Check key id and secret; a proxy that changes host or path" in message


@EACH
def test_wrong_key_id_is_denied(s3: S3Server, bucket: str, act: Callable[[S3Store], object]) -> None:
    store = S3Store(bucket, "ckp", s3.settings(access_key_id="NOBODY"))
    assert "InvalidAccessKeyId (403): InvalidAccessKeyId. Check key id" in refusal(act, store, StoreDenied)


@EACH
def test_expired_token_is_denied(s3: S3Server, bucket: str, act: Callable[[S3Store], object]) -> None:
    s3.keys["SESSION"] = Key("s", token="t", expires=time.time() - 1)
    message = refusal(act, S3Store(bucket, "ckp", s3.settings("SESSION")), StoreDenied)
    assert "ExpiredToken (400)" in message
    assert "give a new one, or a role" in message


@EACH
def test_wrong_token_is_denied(s3: S3Server, bucket: str, act: Callable[[S3Store], object]) -> None:
    s3.keys["SESSION"] = Key("s", token="t")
    store = S3Store(bucket, "ckp", s3.settings("SESSION", session_token="another"))
    assert "InvalidToken (400)" in refusal(act, store, StoreDenied)


@EACH
def test_wrong_clock_is_denied(s3: S3Server, s3_store: S3Store, act: Callable[[S3Store], object]) -> None:
    s3.clock = lambda: time.time() + 3600
    message = refusal(act, s3_store, StoreDenied)
    assert "RequestTimeTooSkewed (403)" in message
    assert "Set the clock of this machine" in message


@EACH
def test_missing_bucket_is_misconfigured(s3: S3Server, act: Callable[[S3Store], object]) -> None:
    message = refusal(act, S3Store("no-such-lake", "ckp", s3.settings()), StoreMisconfigured)
    assert "NoSuchBucket (404)" in message
    assert "Create the bucket, or correct its name" in message


@pytest.fixture(scope="module")
def closed_port() -> int:
    return free_port()


@EACH
def test_absent_server_is_unavailable(bucket: str, closed_port: int, act: Callable[[S3Store], object]) -> None:
    settings = S3Settings(f"http://127.0.0.1:{closed_port}", access_key_id="WRITER", secret_access_key=SECRET)
    message = refusal(act, S3Store(bucket, "ckp", settings), StoreUnavailable)
    assert "EndpointConnectionError" in message
    assert "Check endpoint_url (host, port), DNS, proxy and firewall" in message


@EACH
def test_missing_credentials_are_denied(s3: S3Server, bucket: str, act: Callable[[S3Store], object]) -> None:
    message = refusal(act, S3Store(bucket, "ckp", S3Settings(s3.url)), StoreDenied)
    assert "NoCredentialsError" in message
    assert "Give key id and secret, role_arn or profile_name in the connection" in message


@EACH
def test_unknown_profile_is_misconfigured(s3: S3Server, bucket: str, act: Callable[[S3Store], object]) -> None:
    message = refusal(act, S3Store(bucket, "ckp", S3Settings(s3.url, profile_name="nobody")), StoreMisconfigured)
    assert "ProfileNotFound" in message
    assert "Check profile_name" in message


@EACH
def test_https_at_an_http_port_is_unavailable(s3: S3Server, bucket: str, act: Callable[[S3Store], object]) -> None:
    store = S3Store(bucket, "ckp", s3.settings(endpoint_url=s3.url.replace("http", "https")))
    if act is ACTS["write"]:  # the error is also that of a connection that ends when all is done
        assert act(store).name == "UNKNOWN"  # type: ignore[attr-defined]
    else:
        assert "Check http or https in endpoint_url" in refusal(act, store, StoreUnavailable)


def test_read_only_key_reads_and_names_the_missing_right(s3: S3Server, bucket: str, s3_store: S3Store) -> None:
    s3.keys["READER"] = Key("s", may=reading)
    store = S3Store(bucket, "ckp", s3.settings("READER"))
    s3_store.create("journal/0", b"x")
    assert store.read("journal/0") == b"x"
    assert store.read("journal/1") is None
    assert [listed.key for listed in store.list("journal")] == ["journal/0"]
    for name, action in {
        "write": "PutObject",
        "overwrite": "PutObject",
        "delete": "DeleteObject",
        "delete under": "DeleteObject",
    }.items():
        message = refusal(ACTS[name], store, StoreDenied)
        assert f"AccessDenied (403): AccessDenied. Allow s3:{action} on arn:aws:s3:::{bucket}/ckp/*" in message
    with pytest.raises(StoreDenied, match="Allow s3:PutObject"):
        probe(store)


def test_absent_key_is_denied_without_the_right_to_list(s3: S3Server, bucket: str, s3_store: S3Store) -> None:
    s3.keys["BLIND"] = Key("s", lists=False)
    store = S3Store(bucket, "ckp", s3.settings("BLIND"))
    s3_store.create("journal/0", b"x")
    assert store.read("journal/0") == b"x"
    rights = f"Allow s3:GetObject on arn:aws:s3:::{bucket}/ckp/*, and s3:ListBucket on arn:aws:s3:::{bucket}"
    assert f"{rights}: without it S3 says this of every absent key" in refusal(ACTS["read"], store, StoreDenied)
    assert f"Allow s3:ListBucket on arn:aws:s3:::{bucket} " in refusal(ACTS["list"], store, StoreDenied)
    with pytest.raises(StoreDenied, match="s3:ListBucket"):
        probe(store)


class WebSite(BaseHTTPRequestHandler):
    """Answers 200 and a page to everything."""

    status = 200
    page = b"<!doctype html><html><p>It works!<br></html>"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing."""


class WellFormedSite(WebSite):
    page = b"<html><p>It works!</p></html>"


@contextmanager
def serving(site: type[WebSite]) -> Iterator[S3Store]:
    """Yield a store whose endpoint is a web site."""
    server = HTTPServer(("127.0.0.1", 0), site)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        yield S3Store("lake", "ckp", S3Settings(endpoint, access_key_id="A", secret_access_key=SECRET))
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.mark.parametrize("site", [WebSite, WellFormedSite])
def test_web_site_is_refused_as_a_store(site: type[WebSite]) -> None:
    with serving(site) as store:
        assert "Check endpoint_url" in refusal(ACTS["read"], store, StoreMisconfigured)
        for name in ("overwrite", "list", "folders", "delete under"):  # botocore says 500 of a page that is no XML
            assert "heck endpoint_url" in refusal(ACTS[name], store, StoreError)
        with pytest.raises(StoreMisconfigured, match="Check endpoint_url"):
            probe(store)


class HostileServer(WebSite):
    status = 500
    page = "<Error><Code>Slow\u202eDown</Code><Message>wait\nchk-9  forged\x9b2J</Message></Error>".encode()


def test_message_of_the_server_is_one_printable_line_in_errors_tracebacks_and_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with serving(HostileServer) as store:
        assert store.create("journal/1", b"x") is Put.UNKNOWN
        with pytest.raises(StoreError, match="wait") as failed:
            store.read("journal/1")
    assert r"wait chk-9  forged\x9b2J" in caplog.messages[-1]
    shown = traceback.format_exception(failed.value)
    for text in (str(failed.value), *caplog.messages, *(line for part in shown for line in part.splitlines())):
        assert text.isprintable()
        assert not text.lstrip().startswith("chk-9")


def test_put_at_a_web_site_is_unknown() -> None:
    with serving(WellFormedSite) as store, pytest.raises(CommitStateUnknown, match="it leads to a web site"):
        store.create("journal/1", b"x")
    with serving(WebSite) as store:
        assert store.create("journal/1", b"x") is Put.UNKNOWN


def test_store_that_overwrites_is_refused(s3: S3Server, s3_store: S3Store) -> None:
    probe(s3_store)
    assert s3.client.list_objects_v2(Bucket=s3_store.bucket)["KeyCount"] == 0
    s3.obeys_conditions = False
    with pytest.raises(
        StoreMisconfigured, match=r"a second put of the same key was not refused.*supports If-None-Match"
    ):
        probe(s3_store)


@pytest.mark.parametrize(
    ("status", "code", "error", "advice"),
    [
        (501, "NotImplemented", StoreMisconfigured, "choose another"),
        (405, "MethodNotAllowed", StoreMisconfigured, "choose another"),
        (400, "InvalidArgument", StoreMisconfigured, "choose another"),
        (301, "PermanentRedirect", StoreMisconfigured, "Set region_name to the bucket's region"),
        (400, "AuthorizationHeaderMalformed", StoreMisconfigured, "Set region_name"),
        (400, "TokenRefreshRequired", StoreDenied, "give a new one, or a role"),
        (403, "AllAccessDisabled", StoreDenied, "Allow s3:"),
        (400, "KeyTooLongError", StoreMisconfigured, "The store gives this reason"),
        (409, "OperationAborted", StoreUnavailable, "trying again may help"),
        (409, "ConcurrentModification", StoreUnavailable, "trying again may help"),
        (400, "BadDigest", StoreUnavailable, "Look at network and proxies"),
        (400, "Throttling", StoreUnavailable, "trying again may help"),
        (400, "ThrottlingException", StoreUnavailable, "trying again may help"),
        (400, "RequestLimitExceeded", StoreUnavailable, "trying again may help"),
        (400, "IDPCommunicationError", StoreUnavailable, "the identity provider"),
        (400, "RequestThrottled", StoreUnavailable, "trying again may help"),
        (403, "QuotaExceeded", StoreUnavailable, "Make room there"),
        (400, "XMinioAdminBucketQuotaExceeded", StoreUnavailable, "Make room there"),
        (400, "ExpiredTokenException", StoreDenied, "AWS_WEB_IDENTITY_TOKEN_FILE"),
        (400, "InvalidIdentityToken", StoreDenied, "AWS_WEB_IDENTITY_TOKEN_FILE"),
    ],
)
@pytest.mark.parametrize("act", [ACTS["write"], ACTS["read"], ACTS["overwrite"]])
def test_other_error_codes_have_their_error_and_advice(
    hurt_store: S3Store,
    proxy: FaultProxy,
    status: int,
    code: str,
    error: type[StoreError],
    advice: str,
    act: Callable[[S3Store], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    for method in ("GET", "PUT", "HEAD"):
        proxy.hurt(method, "", Harm.ERROR_BEFORE, times=9, status=status, code=code)
    message = refusal(act, hurt_store, error)
    assert f"{code} ({status}): as planned" in message
    assert advice in message


@pytest.mark.parametrize("status", [403, 404, 410, 400])
def test_answer_without_an_error_code_is_never_absent(hurt_store: S3Store, proxy: FaultProxy, status: int) -> None:
    proxy.hurt("GET", "", Harm.ANSWERED, times=99, status=status, body=b"<html>gone</html>")
    with pytest.raises((StoreMisconfigured, StoreDenied)):
        hurt_store.read("journal/1")


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_busy_store_is_retried_and_then_unavailable(
    hurt_store: S3Store, s3_store: S3Store, proxy: FaultProxy, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    s3_store.create("journal/1", b"x")
    proxy.hurt("GET", "", Harm.ERROR_BEFORE, times=3, status=status)
    assert hurt_store.read("journal/1") == b"x"
    proxy.hurt("GET", "", Harm.ERROR_BEFORE, times=99, status=status)
    for name in ("read", "list"):
        assert "trying again may help" in refusal(ACTS[name], hurt_store, StoreUnavailable)


def test_answer_without_a_message_is_reported_by_its_code(hurt_store: S3Store, proxy: FaultProxy) -> None:
    """Ceph answers so."""
    body = b"<Error><Code>SignatureDoesNotMatch</Code><Message></Message></Error>"
    proxy.hurt("GET", "", Harm.ANSWERED, status=403, body=body)
    assert "SignatureDoesNotMatch (403). Check key id" in refusal(ACTS["read"], hurt_store, StoreDenied)


def test_archived_object_is_denied(hurt_store: S3Store, proxy: FaultProxy) -> None:
    proxy.hurt("GET", "", Harm.ERROR_BEFORE, status=403, code="InvalidObjectState")
    assert "exempt checkpoints from that lifecycle rule" in refusal(ACTS["read"], hurt_store, StoreDenied)


@EACH
def test_unknown_error_of_the_client_is_the_stores(
    s3_store: S3Store, monkeypatch: pytest.MonkeyPatch, act: Callable[[S3Store], object]
) -> None:
    """Threads that watch the store go on after its own errors only."""

    def broken(settings: S3Settings) -> None:
        raise TypeError("of botocore")

    monkeypatch.setattr(module, "clients", broken)
    message = refusal(act, s3_store, StoreUnavailable)
    assert "TypeError: of botocore" in message
    assert "trying again may help" in message


def test_put_is_unknown_after_an_unknown_error() -> None:
    assert meaning(TypeError()) is Meaning.UNKNOWN
    assert meaning(OSError()) is Meaning.UNKNOWN


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endpoint_url": "localhost:9000"}, "http://host:port"),
        ({"endpoint_url": "http://AKIAX:secret@host"}, "http://host:port"),
        ({"endpoint_url": "http://host/bucket"}, "http://host:port"),
        ({"endpoint_url": "ftp://host"}, "http://host:port"),
        ({"addressing_style": "paths"}, "Write one of auto, path, virtual"),
        ({"access_key_id": "AKIAX"}, "Give both or none"),
        ({"secret_access_key": "secret"}, "Give both or none"),
        ({"access_key_id": "A", "secret_access_key": "secret@\n"}, "Paste it again"),
        ({"access_key_id": "A", "secret_access_key": "s", "session_token": "secret@ "}, "Paste it again"),
    ],
)
def test_invalid_settings_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(StoreMisconfigured) as refused:
        S3Settings(**given)
    assert says in str(refused.value)
    assert "secret@" not in str(refused.value)


def test_settings_show_no_secret(s3: S3Server) -> None:
    shown = repr(replace(s3.settings(), session_token="the-token"))
    assert s3.url in shown
    assert not any(secret in shown for secret in (SECRET, "the-token", "WRITER"))
