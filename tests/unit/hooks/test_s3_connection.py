"""A connection to S3: its fields, refused values, and the answers of *Test connection*. Runs in Airflow (worker)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server

import pytest

from airflow_checkpoint_provider.errors import NotSupportedYet, StoreMisconfigured
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.storage import S3Settings, S3Store
from tests.support.s3server import Key, S3Server, reading

ROOT = {"root": "s3://lake/ckp"}


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> CheckpointStorageHook:
    connection = {"conn_type": "checkpoint_storage", **fields}
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(connection))
    return CheckpointStorageHook()


def settings(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> S3Settings:
    store = connect(monkeypatch, **fields).get_store()
    assert isinstance(store, S3Store)
    assert store.uri == "s3://lake/ckp"
    return store.settings


# -- fields ------------------------------------------------------------------------------------------------------------


def test_all_fields_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "endpoint_url": "https://store:9000", "region_name": "eu-central-1", "addressing_style": "virtual",
        "verify": "/etc/ca.pem", "role_arn": "arn:aws:iam::1:role/a", "profile_name": "lake", "aws_session_token": "t",
    }  # fmt: skip
    found = settings(monkeypatch, login="AKIAEXAMPLE", password="s", extra={**ROOT, **extra})
    assert found == S3Settings(
        "https://store:9000", "eu-central-1", "virtual", "/etc/ca.pem", "AKIAEXAMPLE", "s", "t", "arn:aws:iam::1:role/a", "lake",
    )  # fmt: skip


@pytest.mark.parametrize("empty", [None, ""])
def test_empty_fields_of_the_form_are_ignored(monkeypatch: pytest.MonkeyPatch, empty: str | None) -> None:
    left = dict.fromkeys(
        ("endpoint_url", "region_name", "addressing_style", "verify", "role_arn", "aws_session_token"), empty
    )
    assert settings(monkeypatch, extra={**ROOT, **left}) == S3Settings()


@pytest.mark.parametrize("extra", [ROOT, {"root": "s3a://lake/ckp"}, {"root": "S3://lake/ckp/"}])
def test_connection_without_keys_has_default_settings(monkeypatch: pytest.MonkeyPatch, extra: dict[str, str]) -> None:
    assert settings(monkeypatch, extra=extra) == S3Settings()


@pytest.mark.parametrize(
    ("given", "verify"),
    [
        (True, True),
        (False, False),
        ("true", True),
        ("False", False),
        ("", True),
        (None, True),
        ("/etc/ca.pem", "/etc/ca.pem"),
    ],
)
def test_verify_is_read_as_bool_or_path(monkeypatch: pytest.MonkeyPatch, given: object, verify: object) -> None:
    assert settings(monkeypatch, extra={**ROOT, "verify": given}).verify == verify


def test_connection_of_airflows_aws_provider_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "s", "region_name": "eu-central-1",
        "endpoint_url": "http://elsewhere:1", "service_config": {"s3": {"endpoint_url": "http://store:9000"}},
    }  # fmt: skip
    found = settings(monkeypatch, conn_type="aws", extra={**ROOT, **extra})
    assert found == S3Settings("http://store:9000", "eu-central-1", access_key_id="AKIAEXAMPLE", secret_access_key="s")
    both = settings(monkeypatch, conn_type="aws", login="OTHER", password="o", extra={**ROOT, **extra})
    assert (both.access_key_id, both.secret_access_key) == ("OTHER", "o")


def test_connection_may_be_a_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "aws://AKIAEXAMPLE:s%2Fs@/?root=s3%3A%2F%2Flake%2Fckp&endpoint_url=http%3A%2F%2Fstore%3A9000&verify=false"
    monkeypatch.setenv("AIRFLOW_CONN_MINE", uri)
    store = CheckpointStorageHook("mine").get_store()
    assert isinstance(store, S3Store)
    expected = S3Settings("http://store:9000", verify=False, access_key_id="AKIAEXAMPLE", secret_access_key="s/s")
    assert store.settings == expected


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "extra", [{"config_kwargs": {}, "external_id": "x"}, {"assume_role_kwargs": {"a": 1}}, {"bucket": "lake"}]
)
def test_extras_without_effect_are_refused(monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any]) -> None:
    with pytest.raises(NotSupportedYet, match=f"has {', '.join(extra)}; with this root, this version knows `root`, "):
        settings(monkeypatch, conn_type="aws", extra={**ROOT, **extra})


@pytest.mark.parametrize("field", ["host", "schema"])
def test_fields_without_effect_are_refused(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    with pytest.raises(NotSupportedYet, match=f"has {field};"):
        settings(monkeypatch, extra=ROOT, **{field: "x"})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"extra": {**ROOT, "endpoint_url": "store:9000"}}, "endpoint_url is invalid. Write http://host:port"),
        (
            {"extra": {**ROOT, "addressing_style": "host"}},
            "addressing_style is 'host'. Write one of auto, path, virtual",
        ),
        ({"extra": {**ROOT, "verify": "ca.pem"}}, "verify is neither true, false, nor the absolute path"),
        ({"extra": {**ROOT, "verify": 1}}, "verify is neither true, false, nor"),
        ({"extra": {**ROOT, "region_name": 7}}, "region_name is not text"),
        ({"extra": {**ROOT, "service_config": {"sts": {}}}}, "of service_config, only"),
        ({"extra": ROOT, "login": "AKIAEXAMPLE"}, "a key id without a secret"),
        ({"extra": ROOT, "login": "AKIAEXAMPLE", "password": "tell-nobody\n"}, "contains a space or a line break"),
        ({"extra": {"root": "s3://lake/a//b"}}, "is not a valid key"),
        ({"extra": {"root": "s3:/lake"}}, "has no bucket"),
        ({"extra": ROOT, "conn_type": "s3"}, "is of type 's3'; make it 'checkpoint_storage'"),
        ({"extra": {}, "conn_type": "aws"}, "must say in its extra where checkpoints live"),
    ],
)
def test_invalid_values_are_refused(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(StoreMisconfigured) as refused:
        connect(monkeypatch, **fields).get_store()
    assert refused.value.message.startswith("Connection 'checkpoint_default'")
    assert says in refused.value.message
    assert "tell-nobody" not in str(refused.value)


# -- Test connection ---------------------------------------------------------------------------------------------------


def press(
    monkeypatch: pytest.MonkeyPatch, s3: S3Server, bucket: str, key: str = "WRITER", **extra: str
) -> tuple[bool, str]:
    secret, token = s3.keys[key].secret, s3.keys[key].token
    where = {"root": f"s3://{bucket}/ckp", "endpoint_url": s3.url, "aws_session_token": token}
    return connect(monkeypatch, login=key, password=secret, extra={**where, **extra}).test_connection()


def test_test_connection_passes_a_good_store(monkeypatch: pytest.MonkeyPatch, s3: S3Server, bucket: str) -> None:
    assert press(monkeypatch, s3, bucket) == (
        True,
        f"s3://{bucket}/ckp can hold checkpoints: of two writers of one key exactly one wins.",
    )
    assert "Contents" not in s3.client.list_objects_v2(Bucket=bucket)


def expired(s3: S3Server) -> str:
    s3.keys["EXPIRED"] = Key("s", token="t", expires=time.time() - 1)
    return "EXPIRED"


def read_only(s3: S3Server) -> str:
    s3.keys["READER"] = Key("s", may=reading)
    return "READER"


def without_listing(s3: S3Server) -> str:
    s3.keys["BLIND"] = Key("s", lists=False)
    return "BLIND"


def wrong_clock(s3: S3Server) -> str:
    s3.clock = lambda: time.time() + 3600
    return "WRITER"


@pytest.mark.parametrize(
    ("breaks", "code", "words"),
    [
        (read_only, "CKP611", ["AccessDenied (403)", "Allow s3:PutObject on arn:aws:s3:::{bucket}/ckp/*"]),
        (expired, "CKP611", ["ExpiredToken (400)", "give a new one, or a role"]),
        (wrong_clock, "CKP611", ["RequestTimeTooSkewed (403)", "Set the clock of this machine"]),
        (without_listing, "CKP611", ["AccessDenied (403)", "s3:ListBucket on arn:aws:s3:::{bucket}"]),
    ],
)
def test_test_connection_names_code_and_advice(
    monkeypatch: pytest.MonkeyPatch,
    s3: S3Server,
    bucket: str,
    breaks: Callable[[S3Server], str],
    code: str,
    words: list[str],
) -> None:
    ok, text = press(monkeypatch, s3, bucket, breaks(s3))
    assert not ok
    assert text.endswith(f"[{code}]")
    assert all(word.format(bucket=bucket) in text for word in words), text


def test_test_connection_reports_a_wrong_secret(monkeypatch: pytest.MonkeyPatch, s3: S3Server, bucket: str) -> None:
    hook = connect(
        monkeypatch, login="WRITER", password="tell-nobody", extra={"root": f"s3://{bucket}", "endpoint_url": s3.url}
    )
    ok, text = hook.test_connection()
    assert not ok
    assert "SignatureDoesNotMatch (403)" in text
    assert "Check key id and secret" in text
    assert "tell-nobody" not in text


def test_test_connection_reports_an_unknown_key_id(monkeypatch: pytest.MonkeyPatch, s3: S3Server, bucket: str) -> None:
    extra = {"root": f"s3://{bucket}", "endpoint_url": s3.url}
    ok, text = connect(monkeypatch, login="NOBODY", password="s", extra=extra).test_connection()
    assert not ok
    assert "InvalidAccessKeyId (403)" in text


def test_test_connection_reports_a_missing_bucket(monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> None:
    ok, text = press(monkeypatch, s3, "nowhere")
    assert not ok
    assert "NoSuchBucket (404)" in text
    assert "Create the bucket, or correct its name" in text
    assert "[CKP612]" in text


def test_test_connection_reports_a_store_that_overwrites(
    monkeypatch: pytest.MonkeyPatch, s3: S3Server, bucket: str
) -> None:
    s3.obeys_conditions = False
    ok, text = press(monkeypatch, s3, bucket)
    assert not ok
    assert "two drivers could both win" in text


def test_test_connection_reports_a_web_site(monkeypatch: pytest.MonkeyPatch, s3: S3Server, bucket: str) -> None:
    def page(environ: Any, start: Any) -> list[bytes]:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start("200 OK", [("Content-Type", "text/html")])
        return [b"<html>Welcome</html>"]

    site: WSGIServer = make_server("127.0.0.1", 0, page)
    thread = Thread(target=site.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        ok, text = press(monkeypatch, s3, bucket, endpoint_url=f"http://127.0.0.1:{site.server_port}")
    finally:
        site.shutdown()
        site.server_close()
        thread.join(10)
    assert not ok
    assert "Check endpoint_url: scheme, host and port must be those of an S3 service" in text


def test_test_connection_reports_an_absent_server(monkeypatch: pytest.MonkeyPatch, s3: S3Server, bucket: str) -> None:
    ok, text = press(monkeypatch, s3, bucket, endpoint_url="http://127.0.0.1:9")
    assert not ok
    assert "Check endpoint_url (host, port), DNS, proxy and firewall" in text
