"""On a real Airflow: tasks and commands find connections, the form works. Without a database: test_without_a_part.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.lab import Lab, Look
from tests.support.s3server import S3Server

pytestmark = pytest.mark.timeout(1800)


def add(lab: Lab, conn_id: str, **fields: Any) -> None:
    with lab.writing:
        lab.stack.client.write("POST", "/api/v2/connections", {"connection_id": conn_id, **fields})


def test_task_finds_a_connection_of_the_database(lab: Lab) -> None:
    add(lab, "there", conn_type="spark", host="local[2]")
    assert Look(lab, "there").answer() == "found local[2]"


def test_task_learns_that_a_connection_is_missing(lab: Lab) -> None:
    assert Look(lab, "nowhere").answer() == "absent"


def test_command_finds_a_connection_of_the_database(lab: Lab) -> None:
    add(lab, "for_commands", conn_type="spark", host="local[4]")
    code = "from airflow_checkpoint_provider.hooks.connections import find_connection as find\n"
    code += "print('host', find('for_commands').host, 'and', find('nowhere'))"
    assert "host local[4] and None\n" in lab.stack.run("python", "-c", code)


@pytest.mark.slow  # test_checkpoint_storage.py of the hooks has both, without a database
def test_missing_connection_is_accepted_only_with_a_local_master(lab: Lab) -> None:
    code = """
import os
os.environ.pop("AIRFLOW_CONN_CHECKPOINT_DEFAULT")
from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
for master in ("local[*]", "yarn", None):
    try:
        print("root", master, CheckpointStorageHook(master=master).get_store().uri)
    except StoreMisconfigured as error:
        print("refused", master, error)
"""
    local, yarn, none = (
        line for line in lab.stack.run("python", "-c", code).splitlines() if line[:4] in ("root", "refu")
    )
    assert local == f"root local[*] file://{lab.stack.home}/checkpoints"
    assert yarn.startswith("refused yarn There is no connection 'checkpoint_default'")
    assert none.startswith("refused None There is no connection 'checkpoint_default'")


@pytest.mark.slow
def test_task_without_master_uses_the_local_folder_if_it_holds_the_job(lab: Lab) -> None:
    (lab.stack.home / "checkpoints" / "jobs" / "known").mkdir(parents=True)
    code = """
import os
os.environ.pop("AIRFLOW_CONN_CHECKPOINT_DEFAULT")
from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
for job in ("known", "unknown"):
    try:
        print("root", job, CheckpointStorageHook().get_store_of(job).uri)
    except StoreMisconfigured as error:
        print("refused", job, error.code)
"""
    said = [line for line in lab.stack.run("python", "-c", code).splitlines() if line[:4] in ("root", "refu")]
    assert said == [f"root known file://{lab.stack.home}/checkpoints", "refused unknown CKP641"]


def test_form_has_fields_for_root_and_s3(lab: Lab) -> None:
    kinds = {kind["connection_type"]: kind for kind in lab.stack.client.call("GET", "/ui/connections/hook_meta")}
    form = kinds["checkpoint_storage"]
    assert form["hook_name"] == "Checkpoint Storage"
    assert {"root", "endpoint_url", "role_arn"} < set(form["extra_fields"])
    assert form["extra_fields"]["aws_session_token"]["schema"]["format"] == "password"
    assert form["standard_fields"]["login"]["title"] == "Access key id (S3)"


@pytest.mark.parametrize(("root", "works"), [("folder", True), ("fodler", False), ("file", False)])
def test_connection_test_of_a_folder(lab: Lab, tmp_path: Path, root: str, works: bool) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    extra = f'{{"root": "{tmp_path / root}"}}'
    body = {"connection_id": "tested", "conn_type": "checkpoint_storage", "extra": extra}
    answer = lab.stack.client.call("POST", "/api/v2/connections/test", body)
    assert answer["status"] is works
    assert str(tmp_path / root) in answer["message"]
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert os.listdir(tmp_path / "folder") == []


@pytest.mark.parametrize(("secret", "works"), [("writer-secret", True), ("tell-nobody", False)])
def test_connection_test_of_s3(lab: Lab, s3: S3Server, bucket: str, secret: str, works: bool) -> None:
    """As the form sends it: what was left empty is null."""
    left = dict.fromkeys(("region_name", "addressing_style", "verify", "role_arn", "profile_name", "aws_session_token"))
    extra = json.dumps({"root": f"s3://{bucket}/ckp", "endpoint_url": s3.url, **left})
    body = {"connection_id": "tested", "conn_type": "checkpoint_storage", "extra": extra}
    answer = lab.stack.client.call("POST", "/api/v2/connections/test", {**body, "login": "WRITER", "password": secret})
    assert answer["status"] is works
    assert ("can hold checkpoints" if works else "SignatureDoesNotMatch (403)") in answer["message"]
    assert "tell-nobody" not in answer["message"]
