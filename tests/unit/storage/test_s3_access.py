"""What another client is told of how boto3 reaches a bucket. Runs anywhere; nothing is asked of a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.storage import S3Settings, S3Store
from airflow_checkpoint_provider.storage import s3 as module
from airflow_checkpoint_provider.storage.s3_credentials import Access
from tests.support.s3server import S3Server

KEYS = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "the-secret"}
pytestmark = pytest.mark.usefixtures("s3")


@pytest.fixture(autouse=True)
def _clients_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept by their settings, and here the environment changes."""
    monkeypatch.setattr(module, "_made", {})


def of(**settings: Any) -> Access:
    return S3Store("lake", "ckp", S3Settings(**settings)).access()


@pytest.mark.parametrize(
    ("settings", "endpoint", "region", "path_style"),
    [
        ({"region_name": "eu-central-1"}, "https://s3.eu-central-1.amazonaws.com", "eu-central-1", False),
        ({}, "https://s3.amazonaws.com", "us-east-1", False),
        ({"addressing_style": "path"}, "https://s3.amazonaws.com", "us-east-1", True),
        ({"endpoint_url": "http://127.0.0.1:9"}, "http://127.0.0.1:9", "us-east-1", True),
        ({"endpoint_url": "http://store:9", "addressing_style": "virtual"}, "http://store:9", "us-east-1", False),
    ],
    ids=["a region of Amazon", "Amazon", "Amazon by path", "an endpoint", "an endpoint with names of hosts"],
)
def test_endpoint_region_and_style_are_those_of_the_settings(
    settings: dict[str, str], endpoint: str, region: str, path_style: bool
) -> None:
    found = of(**KEYS, **settings)
    assert (found.endpoint, found.region, found.path_style) == (endpoint, region, path_style)


def test_endpoint_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://store:9000")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    found = of(**KEYS)
    assert (found.endpoint, found.path_style) == ("http://store:9000", True)


def test_keys_of_the_settings_are_used() -> None:
    found = of(**KEYS, session_token="the-token")
    assert (found.access_key_id, found.secret_access_key, found.session_token) == (*KEYS.values(), "the-token")
    assert not found.renewed
    assert "the-secret" not in repr(found)
    assert "the-token" not in repr(found)
    assert "AKIA" not in repr(found)


def test_keys_of_the_environment_are_used(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    found = of()
    assert (found.access_key_id, found.found_by, found.renewed) == ("WRITER", "env", False)
    assert found.endpoint == s3.url


def test_keys_of_a_profile_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = tmp_path / "credentials"
    shared.write_text("[lake]\naws_access_key_id = THEIRS\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    assert of(profile_name="lake").access_key_id == "THEIRS"
    with pytest.raises(StoreMisconfigured, match=r"cannot read s3://lake/ckp: ProfileNotFound.*Check profile_name"):
        of(profile_name="other")


def test_role_is_not_assumed() -> None:
    """Who uses it assumes it, with these keys, and again when it ends."""
    found = of(**KEYS, role_arn="arn:aws:iam::1:role/checkpoints", region_name="eu-central-1")
    assert (found.role_arn, found.access_key_id) == ("arn:aws:iam::1:role/checkpoints", "AKIAEXAMPLE")
    assert (found.sts_endpoint, found.sts_region) == ("https://sts.eu-central-1.amazonaws.com", "eu-central-1")


def test_missing_credentials_name_the_places() -> None:
    with pytest.raises(StoreMisconfigured) as refused:
        of(region_name="eu-central-1")
    for place in (
        "s3://lake/ckp",
        "AWS_ACCESS_KEY_ID",
        "~/.aws",
        "web identity",
        "container",
        "instance",
        "client mode",
    ):
        assert place in refused.value.message
