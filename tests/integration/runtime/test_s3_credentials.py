"""Credentials that expire: driver and S3A each read them from their source, and renew them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from airflow_checkpoint_provider.protocol.handover import PREFIX
from airflow_checkpoint_provider.storage import s3_credentials
from tests.support.launches import Launches
from tests.support.runs import Home
from tests.support.s3server import REGION, Key, S3Server

pytestmark = pytest.mark.slow
NOT_OF_THIS_MACHINE = {
    "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": REGION,
}  # fmt: skip
ROLE = "arn:aws:iam::123456789012:role/checkpoints"
ASSUMED = """<{0}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{0}Result><Credentials>
<AccessKeyId>GIVEN</AccessKeyId><SecretAccessKey>given-secret</SecretAccessKey><SessionToken>given-token</SessionToken>
<Expiration>{1}</Expiration></Credentials><AssumedRoleUser><Arn>{2}</Arn><AssumedRoleId>A:b</AssumedRoleId></AssumedRoleUser>
</{0}Result><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></{0}Response>"""


class Giver(BaseHTTPRequestHandler):
    """A container's endpoint (GET) and a token service (POST), which writes down who asks for what."""

    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append(("container", self.headers["User-Agent"]))
        keys = {"AccessKeyId": "GIVEN", "SecretAccessKey": "given-secret", "Token": "given-token"}
        self._answer(json.dumps({**keys, "Expiration": _soon()}), "application/json")

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        action = form["Action"][0]
        self.asked.append((action, self.headers["User-Agent"]))
        self._answer(ASSUMED.format(action, _soon(), form["RoleArn"][0]), "text/xml")

    def _answer(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _soon() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def giving() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    asked: list[tuple[str, str]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Given", (Giver,), {"asked": asked}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def home(tmp_path: Path, s3: S3Server) -> Home:
    s3.keys["GIVEN"] = Key("given-secret", token="given-token")
    home = Home(tmp_path / "home", "one.py", s3=s3)
    for name in [name for name in home.env if name.startswith("AWS_")]:
        del home.env[name]
    home.env |= NOT_OF_THIS_MACHINE
    return home


def works(home: Home, **confs: str) -> None:
    """A driver that a task launched writes rows and journal."""
    others = {f"{PREFIX}{name}": value for name, value in confs.items()}
    ended = home.run(submit=True, confs={**Launches(home.store).plan(), **others})
    assert ended.code == 0, ended.log
    assert ended.result["rows"] == 3


def by_both(asked: list[tuple[str, str]], what: str) -> bool:
    """By boto3 and by the SDK for Java."""
    agents = [agent.lower() for action, agent in asked if action == what]
    return all(any(name in agent for agent in agents) for name in ("python", "java"))


def test_driver_uses_credentials_of_a_container(home: Home) -> None:
    """As in cluster mode: a connection's keys stay in Airflow."""
    with giving() as (url, asked):
        home.env["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"{url}/credentials"
        works(home)
        assert by_both(asked, "container"), asked


def test_driver_uses_credentials_of_a_web_identity(home: Home, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a.web.token")
    home.env |= {"AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token")}
    with giving() as (url, asked):
        home.env["AWS_ENDPOINT_URL_STS"] = url
        works(home)
        assert by_both(asked, "AssumeRoleWithWebIdentity"), asked


def test_driver_assumes_the_role_of_the_connection(home: Home) -> None:
    with giving() as (url, asked):
        home.env["AWS_ENDPOINT_URL_STS"] = url
        home.env |= s3_credentials.keys(home.store)
        works(home, **{"s3.role": ROLE})
        assert by_both(asked, "AssumeRole"), asked


def test_driver_uses_credentials_of_a_profile(home: Home, tmp_path: Path, s3: S3Server) -> None:
    shared = tmp_path / "credentials"
    shared.write_text(f"[lake]\naws_access_key_id = WRITER\naws_secret_access_key = {s3.keys['WRITER'].secret}\n")
    home.env["AWS_SHARED_CREDENTIALS_FILE"] = str(shared)
    works(home, **{"s3.profile": "lake"})
