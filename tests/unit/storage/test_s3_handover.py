"""What travels from a task to its driver, and by which way. Runs anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import NotSupportedYet
from airflow_checkpoint_provider.storage import LocalStore, S3Settings, S3Store, s3_credentials

ALL = S3Settings(
    "https://store:9000", "eu-central-1", "path", "/etc/ca.pem", "AKIAHANDED", "the-secret", "the-token",
    "arn:aws:iam::1:role/checkpoints", "lake",
)  # fmt: skip


@pytest.mark.parametrize("settings", [ALL, S3Settings(), S3Settings(access_key_id="a", secret_access_key="b")])
def test_settings_arrive_at_the_driver(settings: S3Settings) -> None:
    store = S3Store("lake", "ckp", settings)
    assert s3_credentials.received(s3_credentials.confs(store), s3_credentials.keys(store)) == settings


def test_keys_are_handed_over_in_the_environment_only() -> None:
    store = S3Store("lake", "ckp", ALL)
    assert s3_credentials.keys(store) == {
        "CHECKPOINT_ACCESS_KEY_ID": "AKIAHANDED",
        "CHECKPOINT_SECRET_ACCESS_KEY": "the-secret",
        "CHECKPOINT_SESSION_TOKEN": "the-token",
    }
    assert s3_credentials.confs(store) == {
        "endpoint": "https://store:9000",
        "region": "eu-central-1",
        "style": "path",
        "verify": "/etc/ca.pem",
        "role": "arn:aws:iam::1:role/checkpoints",
        "profile": "lake",
    }


def test_directory_has_nothing_to_hand_over(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    assert s3_credentials.confs(store) == s3_credentials.keys(store) == {}
    s3_credentials.refuse_for_jobs(store)


def test_unchecked_certificates_are_refused_for_jobs() -> None:
    s3_credentials.refuse_for_jobs(S3Store("lake", "ckp", ALL))
    with pytest.raises(NotSupportedYet, match=r"s3://lake/ckp has verify=false, but .*trustStore"):
        s3_credentials.refuse_for_jobs(S3Store("lake", "ckp", S3Settings(verify=False)))
