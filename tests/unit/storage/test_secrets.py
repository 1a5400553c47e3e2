"""Keys that no log and no error shows: those of boto3 at DEBUG, and those that people write into a URI. Runs anywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider.errors import CheckpointError, StoreDenied
from airflow_checkpoint_provider.protocol.keys import SavepointPointer, pointer_of
from airflow_checkpoint_provider.storage import S3Settings, S3Store, open_store
from airflow_checkpoint_provider.storage import s3 as module
from airflow_checkpoint_provider.storage.s3_credentials import LOGGERS
from tests.support.s3server import Key, S3Server

KEY_ID, SECRET, TOKEN = "AKIAKEYID", "the/secret+key", "the-session-token"
SECRETS = (KEY_ID, SECRET, TOKEN)


# -- boto3 at DEBUG ------------------------------------------------------------------------------------------------------


@pytest.fixture
def _as_at_the_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the clients and the levels of boto3's loggers."""
    monkeypatch.setattr(module, "_made", {})
    loggers = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in LOGGERS]
    before = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.NOTSET)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("_as_at_the_start")
@pytest.mark.parametrize("earlier", [True, False], ids=["DEBUG before the store", "DEBUG after it"])
def test_log_at_debug_holds_no_key(
    s3: S3Server, bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, earlier: bool
) -> None:
    s3.keys[KEY_ID] = Key(SECRET, token=TOKEN)
    if earlier:
        caplog.set_level(logging.DEBUG)
        caplog.set_level(logging.DEBUG, "botocore.auth")
    store = S3Store(bucket, "ckp", s3.settings(KEY_ID))
    store.create("a", b"x")
    for name in (None, "botocore", "botocore.auth", "botocore.endpoint", "botocore.parsers", "urllib3.connectionpool"):
        caplog.set_level(logging.DEBUG, name)
    store.overwrite("a", b"y")
    assert store.read("a") == b"y"
    store.access()
    s3.keys[KEY_ID] = Key(SECRET, token=TOKEN, may=lambda *_: False)
    with pytest.raises(StoreDenied):
        store.read("a")
    for name, value in s3.environment(KEY_ID).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreDenied):
        S3Store(bucket, "ckp", S3Settings()).read("a")
    logging.getLogger("job").debug("the job's own line")
    assert "the job's own line" in caplog.text
    assert [secret for secret in SECRETS if secret in caplog.text] == []


@pytest.mark.usefixtures("_as_at_the_start")
@pytest.mark.parametrize("level", [logging.NOTSET, logging.DEBUG, logging.INFO, logging.ERROR])
@pytest.mark.parametrize("name", LOGGERS)
def test_level_of_a_logger_stays(s3: S3Server, bucket: str, name: str, level: int) -> None:
    logging.getLogger(name).setLevel(level)
    S3Store(bucket, "ckp", s3.settings()).create("a", b"x")
    assert logging.getLogger(name).level == level


@pytest.mark.usefixtures("_as_at_the_start")
def test_other_code_still_logs_at_info_through_boto3(
    s3: S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    S3Store(bucket, "ckp", s3.settings()).create("a", b"x")
    logging.getLogger("botocore.credentials").info("found in the environment")
    assert "found in the environment" in caplog.text


# -- keys in a URI -------------------------------------------------------------------------------------------------------

URIS = [
    f"s3n://{KEY_ID}:{SECRET}@bucket/ckp",
    f"s3://{KEY_ID}:{SECRET}@bucket/ckp",
    f"s3a:/{KEY_ID}:{SECRET}@bucket",
    f"s3:{KEY_ID}:{SECRET}@bucket",
    f"https://{KEY_ID}:{SECRET}@host:9000/bucket/ckp",
    f"gs://{KEY_ID}@bucket/ckp",
    f"hdfs://{KEY_ID}:{SECRET}@namenode/ckp\n",
    f"file://{KEY_ID}:{SECRET}@host/ckp",
    f"memory://{KEY_ID}:{SECRET}@host/ckp",
]
PLACES: list[Callable[[str], object]] = [
    open_store,
    lambda uri: open_store("memory://ours").beside(uri),
    lambda uri: open_store("s3://lake/ckp").beside(uri),
    lambda uri: open_store("s3://lake", savepoint_roots=[uri]),
    lambda uri: pointer_of(f"{uri}/.."),
    lambda uri: open_store("s3://lake").beside(SavepointPointer.parse(f"{uri}/savepoint-orders-1-a").root),
    lambda uri: S3Settings(endpoint_url=uri),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("uri", URIS)
def test_error_about_a_uri_does_not_show_keys_in_it(uri: str, place: Callable[[str], object]) -> None:
    with pytest.raises(CheckpointError) as refused:
        place(uri)
    assert [secret for secret in SECRETS if secret in str(refused.value)] == []


@pytest.mark.parametrize(
    "text",
    [
        "s3://lake/savepoints/a@b",
        "file:///home/me@company/ckp",
        "mail ann@example.org: see s3://lake/ckp",
        "s3://lake/ck:pts:v2/x@y is gone",
        "http://[::1]:9000/a@b and http://minio:9000/a@b",
        "file:///a/b:c:d@e",
        "keep:5:ann@example.org",
        "Allow s3:GetObject on arn:aws:s3:::lake/a:b@c/*",
        "the run scheduled__2026-11-20T10:20:30+00:00 of a@b",
    ],
)
def test_error_shows_other_texts_with_an_at_sign_as_they_are(text: str) -> None:
    assert CheckpointError(text).message == text


WORD = st.text("ab1:@=+-._~%", max_size=12)
HOSTS = st.sampled_from(["s3://lake", "file://", "hdfs://namenode:8020", "http://[::1]:9000", "https://minio:9000"])


@given(HOSTS, st.lists(WORD, max_size=4))
def test_error_shows_a_pointer_without_userinfo_whole(host: str, names: list[str]) -> None:
    text = f"{'/'.join((host, 'jobs', *names))} is gone: ask ann@example.org"
    assert CheckpointError(text).message == text


@given(st.sampled_from(["s3", "s3a", "s3n", "gs", "https"]), st.lists(WORD, min_size=1, max_size=3))
def test_error_never_shows_userinfo(scheme: str, secret: list[str]) -> None:
    """A secret may hold slashes and at signs."""
    text = f"cannot open '{scheme}://KEYID:S{'/'.join(secret)}@lake/ckp' now"
    assert CheckpointError(text).message == f"cannot open '{scheme}://***@lake/ckp' now"
