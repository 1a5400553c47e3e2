"""The command line on checkpoints in S3, with credentials of the environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli import main
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.storage import LocalStore, S3Store
from tests.support.acknowledgements import driver, file_set, upload
from tests.support.planted import append, planted
from tests.support.recorded import Recorded, three_stages
from tests.support.s3server import Key, S3Server


@pytest.fixture
def root(s3: S3Server, bucket: str) -> str:
    """Return the URI of a root with one finished run."""
    store = S3Store(bucket, "ckp", s3.settings())
    recorded = Recorded(store)
    three_stages(recorded)
    recorded.ended("03:00:00")  # ``jobs`` would watch a running driver without heartbeat for 30 s
    return store.uri


@pytest.fixture
def tools(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("tools")
def test_root_in_s3_is_read_with_the_credentials_of_the_environment(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["--root", root, "show", "flights_etl.delays", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main.main(["--root", root.replace("s3:", "s3a:"), "jobs"]) == 0
    assert "flights_etl.delays" in capsys.readouterr().out


@pytest.mark.usefixtures("tools")
def test_denied_bucket_exits_with_5(root: str, s3: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    s3.keys["WRITER"] = Key(s3.keys["WRITER"].secret, may=lambda *_: False)
    assert main.main(["--root", root, "jobs"]) == 5
    assert "AccessDenied (403)" in capsys.readouterr().err


@pytest.mark.usefixtures("tools")
def test_prune_deletes_no_folder_of_this_host_that_a_journal_in_s3_names(
    bucket: str, s3: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = S3Store(bucket, "ckp", s3.settings())
    coordinator = driver(store)
    append(coordinator, planted(f"file://{tmp_path}/savepoint-flights.delays-1-9f3c", "9f3c"))
    append(coordinator, e.CheckpointAborted(id=1, reason="expired", phase="acknowledge"))
    append(coordinator, e.AttemptEnded(epoch=1, outcome="failed", exit_code=1, reported_by="driver"))
    for number in range(2, 4):
        upload(store, coordinator, [file_set("totals", nonce=f"left{number}")])
    LocalStore(tmp_path).create("savepoint-flights.delays-1-9f3c/state/credentials", b"secret")
    assert main.main(["--root", store.uri, "prune", "flights.delays", "--dry-run"]) == 0
    assert main.main(["--root", store.uri, "prune", "flights.delays", "--yes"]) == 2
    told = capsys.readouterr()
    assert str(tmp_path) not in told.out
    assert "because each host has its own folder there" in told.err
    assert [listed.key for listed in LocalStore(tmp_path).list("")] == [
        "savepoint-flights.delays-1-9f3c/state/credentials"
    ]
    assert not list(store.list(f"{coordinator.keys.prefix}/state"))
