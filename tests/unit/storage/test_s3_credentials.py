"""Where the S3 store takes its credentials from. Runs anywhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from airflow_checkpoint_provider.errors import StoreDenied, StoreUnavailable
from airflow_checkpoint_provider.storage import Put, S3Settings, S3Store
from tests.support.s3server import Key, S3Server
from tests.unit.storage.s3_acts import ACTS

ROLE = "arn:aws:iam::123456789012:role/checkpoints"
ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASSUMED</AccessKeyId><SecretAccessKey>secret {number}</SecretAccessKey><SessionToken>token {number}</SessionToken>
<Expiration>{expires}</Expiration></Credentials><AssumedRoleUser><AssumedRoleId>A:c</AssumedRoleId><Arn>a</Arn></AssumedRoleUser>
</AssumeRoleResult></AssumeRoleResponse>"""
REFUSED = "<ErrorResponse><Error><Type>Sender</Type><Code>{}</Code><Message>no</Message></Error></ErrorResponse>"

EXPIRED = '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c", "Expiration": "2020-01-01T00:00:00Z"}'


class TokenService(BaseHTTPRequestHandler):
    """Gives whoever asks the next secret of one key, good for five minutes, and tells the S3 server."""

    s3: S3Server
    asked: list[str]
    refuses = ""  # with this code

    def do_POST(self) -> None:
        self.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        number = len(self.asked)
        expires = (datetime.now(UTC) + timedelta(minutes=5)).isoformat(timespec="seconds").replace("+00:00", "Z")
        if not self.refuses:
            self.s3.keys["ASSUMED"] = Key(f"secret {number}", token=f"token {number}")
        body = (
            REFUSED.format(self.refuses) if self.refuses else ASSUMED.format(number=number, expires=expires)
        ).encode()
        self.send_response(400 if self.refuses else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(service: type[TokenService], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), service)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_port}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_role_is_assumed_and_renewed(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it ends: botocore uses none whose last ten minutes have begun."""
    asked: list[str] = []
    with serving(type("Service", (TokenService,), {"s3": s3, "asked": asked}), monkeypatch):
        store = S3Store(bucket, "ckp", s3.settings(role_arn=ROLE))
        assert store.create("a", b"x") is Put.STORED
        assert store.read("a") == b"x"
    assert len(asked) >= 2
    assert "Action=AssumeRole" in asked[0]
    assert "role%2Fcheckpoints" in asked[0]


def test_denied_role_is_named(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(type("Service", (TokenService,), {"s3": s3, "asked": [], "refuses": "AccessDenied"}), monkeypatch):
        store = S3Store(bucket, "ckp", s3.settings(role_arn=f"{ROLE}-of-others"))
        with pytest.raises(StoreDenied, match="Check role_arn, and that these credentials may assume it"):
            store.read("a")


def test_role_may_be_assumed_later_if_too_many_ask_for_one(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with serving(type("Service", (TokenService,), {"s3": s3, "asked": [], "refuses": "Throttling"}), monkeypatch):
        store = S3Store(bucket, "ckp", s3.settings(role_arn=f"{ROLE}-of-many"))
        with pytest.raises(StoreUnavailable, match=r"Throttling \(400\): no. The store is busy"):
            store.create("a", b"x")


@pytest.mark.parametrize("act", ["write", "read", "overwrite", "list"])
def test_renewed_credentials_that_have_expired_already_are_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """A credential process that keeps the token of yesterday. Clients are kept by their settings, so each act has a profile."""
    script, config = tmp_path / "credentials", tmp_path / "config"
    script.write_text(f"#!/bin/sh\necho '{EXPIRED}'\n")
    script.chmod(0o755)
    config.write_text(f"[profile {act}]\ncredential_process={script}\nregion=us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    store = S3Store("lake", "ckp", S3Settings(endpoint_url="http://127.0.0.1:9", profile_name=act))
    with pytest.raises(StoreDenied, match=r"still expired\. The session token is no longer good"):
        ACTS[act](store)


@pytest.mark.parametrize(
    ("profile", "line", "mode"),
    [
        ("gone", "credential_process={file}.gone", 0o755),
        ("not-executable", "credential_process={file}", 0o644),
        ("no-token", "role_arn=arn:aws:iam::123456789012:role/a\nweb_identity_token_file={file}.gone", 0o644),
    ],
)
def test_file_of_the_credentials_that_cannot_be_used_is_not_taken_for_a_busy_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, line: str, mode: int
) -> None:
    file, config = tmp_path / "file", tmp_path / "config"
    file.touch(mode)
    config.write_text(f"[profile {profile}]\n{line.format(file=file)}\nregion=us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    store = S3Store("lake", "ckp", S3Settings(endpoint_url="http://127.0.0.1:9", profile_name=profile))
    with pytest.raises(StoreDenied, match="check credential_process and web_identity_token_file of the profile"):
        store.read("a")


def test_credentials_of_the_environment_are_used_without_keys(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "WRITER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.keys["WRITER"].secret)
    assert S3Store(bucket, "ckp", S3Settings(s3.url, region_name="environment")).create("a", b"x") is Put.STORED


def test_credentials_of_a_profile_are_used(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shared = tmp_path / "credentials"
    shared.write_text(f"[writer]\naws_access_key_id = WRITER\naws_secret_access_key = {s3.keys['WRITER'].secret}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    store = S3Store(bucket, "ckp", S3Settings(s3.url, profile_name="writer"))
    assert store.create("a", b"x") is Put.STORED


@pytest.mark.parametrize("expired", ["ended", "removed"])
def test_keys_that_were_renewed_in_a_shared_file_are_used_by_the_next_request(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, expired: str
) -> None:
    """A tool renews a session in the file, while the triggerer, a page or a driver goes on."""
    shared = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))

    def renew(key_id: str) -> None:
        s3.keys[key_id] = Key("s", token=f"t-{key_id}")
        keys = {"aws_access_key_id": key_id, "aws_secret_access_key": "s", "aws_session_token": f"t-{key_id}"}
        shared.write_text("\n".join([f"[{expired}]", *(f"{name} = {value}" for name, value in keys.items())]))

    renew("MORNING")
    store = S3Store(bucket, "ckp", S3Settings(s3.url, profile_name=expired))
    store.create("a", b"x")
    if expired == "removed":
        del s3.keys["MORNING"]
    else:
        s3.keys["MORNING"].expires = 0
    with pytest.raises(StoreDenied):
        store.read("a")
    renew("EVENING")
    assert store.read("a") == b"x"


def test_session_token_is_sent(s3: S3Server, bucket: str) -> None:
    s3.keys["SESSION"] = Key("s", token="t")
    assert S3Store(bucket, "ckp", s3.settings("SESSION")).create("a", b"x") is Put.STORED


def test_stores_with_different_keys_use_their_own(s3: S3Server, bucket: str, s3_store: S3Store) -> None:
    """As the user's buckets and ours in one driver."""
    s3.keys["THEIRS"] = Key("t", may=lambda _, path: not path.startswith(f"/{bucket}/"))
    s3.make_bucket("theirs")
    theirs = S3Store("theirs", "", s3.settings("THEIRS"))
    assert theirs.create("a", b"x") is s3_store.create("a", b"x") is Put.STORED
    with pytest.raises(StoreDenied):
        S3Store(bucket, "ckp", theirs.settings).read("a")
