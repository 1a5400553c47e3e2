"""What a task hands over to the driver of a job whose checkpoints are in S3, and by which way."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_checkpoint_provider.protocol.handover import LINE_MARK
from tests.support.s3server import Key, S3Server
from tests.unit.operators.submissions import MASTERS, confs, execute

KEY_ID, SECRET, TOKEN = "AKIAHANDEDOVER", "the-secret-of-the-store", "the-token-of-the-session"


@pytest.fixture
def root(s3: S3Server, bucket: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    s3.keys[KEY_ID] = Key(SECRET, token=TOKEN)
    _connect(monkeypatch, s3, f"s3://{bucket}/ckp")
    return f"s3://{bucket}/ckp"


def _connect(monkeypatch: pytest.MonkeyPatch, s3: S3Server, root: str, **extra: Any) -> None:
    where = {"root": root, "endpoint_url": s3.url, "region_name": "us-east-1", "aws_session_token": TOKEN}
    fields = {"conn_type": "checkpoint_storage", "login": KEY_ID, "password": SECRET, "extra": {**where, **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(fields))


def environ(folder: Path) -> dict[str, str]:
    lines = (folder / "environ").read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines) if name.startswith("CHECKPOINT_")}


@pytest.mark.parametrize("master", MASTERS)
def test_confs_hold_the_location_and_no_secret(root: str, s3: S3Server, folder: Path, master: str) -> None:
    argv = execute(folder, conn_id=master)
    found = confs(argv)
    assert found["spark.checkpointed.root"] == root
    assert {name: value for name, value in found.items() if ".s3." in name} == {
        "spark.checkpointed.s3.endpoint": s3.url,
        "spark.checkpointed.s3.region": "us-east-1",
    }
    assert not any(secret in word for word in argv for secret in (KEY_ID, SECRET, TOKEN))


def test_savepoint_roots_of_the_connection_travel_to_the_driver(
    root: str, s3: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _connect(monkeypatch, s3, root, savepoint_roots=["s3://safe"])
    found = confs(execute(folder, conn_id="local"))
    assert json.loads(found["spark.checkpointed.savepoint_roots"]) == [root, "s3://safe"]


@pytest.mark.usefixtures("root")
def test_client_mode_puts_keys_into_the_environment(folder: Path) -> None:
    execute(folder, conn_id="local", env_vars={"THEIRS": "plain"})
    found = environ(folder)
    assert re.fullmatch(r"::checkpoint-[0-9a-f]{32}::", found.pop(LINE_MARK))
    assert found == {
        "CHECKPOINT_ACCESS_KEY_ID": KEY_ID,
        "CHECKPOINT_SECRET_ACCESS_KEY": SECRET,
        "CHECKPOINT_SESSION_TOKEN": TOKEN,
    }
    assert "THEIRS=plain" in (folder / "environ").read_text()


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("master", ["yarn", "kubernetes"])
def test_cluster_mode_hands_over_no_keys(folder: Path, capsys: pytest.CaptureFixture[str], master: str) -> None:
    execute(folder, conn_id=master)
    assert environ(folder) == {}
    assert "[CKP520]" not in capsys.readouterr().out  # a bucket is the same for all pods


@pytest.mark.usefixtures("root")
def test_cluster_mode_by_a_conf_hands_over_no_keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CLIENT", json.dumps({"conn_type": "spark", "host": "yarn"}))
    execute(folder, conn_id="client", conf={"spark.submit.deployMode": "cluster"})
    assert environ(folder) == {}


def test_summary_and_journal_hold_no_key(root: str, s3: S3Server, folder: Path, bucket: str) -> None:
    execute(folder)
    for listed in s3.client.list_objects_v2(Bucket=bucket)["Contents"]:
        body = s3.client.get_object(Bucket=bucket, Key=listed["Key"])["Body"].read().decode()
        assert not any(secret in body for secret in (KEY_ID, SECRET, TOKEN)), listed["Key"]


def test_unverified_certificates_are_refused(
    root: str, s3: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _connect(monkeypatch, s3, root, verify=False)
    with pytest.raises(AirflowFailException, match=r"verify=false, but Spark's S3A always checks certificates"):
        execute(folder)
    assert not (folder / "argv").exists()


@pytest.mark.usefixtures("root")
def test_refusal_of_a_driver_that_cannot_reach_the_store_is_raised(folder: Path) -> None:
    """The driver has no other way to report that no retry can help."""
    script = folder / "bin" / "spark-submit"
    script.write_text(
        "#!/bin/sh\necho $CHECKPOINT_LINE_MARK'REFUSED: boto3 is not there. Install it  [CKP607]'\necho more\nexit 3\n"
    )
    with pytest.raises(AirflowFailException, match=r"^boto3 is not there\. Install it  \[CKP607\]$"):
        execute(folder, conn_id="local")


@pytest.mark.usefixtures("root")
def test_exit_code_3_without_a_refusal_is_retried(folder: Path) -> None:
    from airflow.sdk.exceptions import AirflowException

    script = folder / "bin" / "spark-submit"
    script.write_text("#!/bin/sh\necho 'not REFUSED: at all'\nexit 3\n")
    with pytest.raises(AirflowException) as failed:
        execute(folder, conn_id="local")
    assert not isinstance(failed.value, AirflowFailException)
