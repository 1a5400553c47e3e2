"""On a real Airflow: a connection that cannot be read is never taken for a missing one, and the form works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.hooks.connections import ConnectionUnreadable
from tests.support.s3server import S3Server
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The way by which the API server reaches the database's folder: a link that a test can take away."""
    return tmp_path_factory.mktemp("way") / "database"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, database: Path) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("airflow")
    with Stack(home, Path(__file__).parent / "dags", {"AIRFLOW__CORE__TEST_CONNECTION": "Enabled"}) as stack:
        stack.client.wait_for_dag("look_up")
        database.symlink_to(home)
        stack.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{database}/airflow.db"
        stack.env["AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_ENABLED"] = "False"  # opens the file for each request
        restart_api_server(stack)
        yield stack


def restart_api_server(stack: Stack) -> None:
    if "api-server" in stack.parts:
        stack.kill("api-server")
    stack.start("api-server")
    stack.wait_until_healthy()


class Look:
    """One run of the task: it waits for ``go``, then looks up."""

    def __init__(self, stack: Stack, folder: Path, conn_id: str) -> None:
        self.folder = folder
        stack.client.trigger("look_up", {"conn_id": conn_id, "folder": str(folder)})
        wait_until((folder / "ready").exists, 60, lambda: "the task did not start")

    def answer(self) -> str:
        (self.folder / "go").touch()
        wait_until((self.folder / "answer").exists, 90, lambda: "the task did not answer")
        return (self.folder / "answer").read_text()


def add(stack: Stack, conn_id: str, **fields: Any) -> None:
    stack.client.write("POST", "/api/v2/connections", {"connection_id": conn_id, **fields})


def test_a_task_finds_a_connection_of_the_database(stack: Stack, tmp_path: Path) -> None:
    add(stack, "there", conn_type="spark", host="local[2]")
    assert Look(stack, tmp_path, "there").answer() == "found local[2]"


def test_a_task_learns_that_there_is_none(stack: Stack, tmp_path: Path) -> None:
    assert Look(stack, tmp_path, "nowhere").answer() == "absent"


@pytest.mark.slow
def test_without_the_api_server_it_is_not_absent(stack: Stack, tmp_path: Path) -> None:
    look = Look(stack, tmp_path, "nowhere")
    stack.kill("api-server")
    try:
        assert look.answer() == ConnectionUnreadable.code
    finally:
        restart_api_server(stack)


def test_without_the_database_behind_the_api_server_it_is_not_absent(
    stack: Stack, database: Path, tmp_path: Path
) -> None:
    look = Look(stack, tmp_path, "nowhere")
    database.unlink()
    try:
        assert look.answer() == ConnectionUnreadable.code
    finally:
        database.symlink_to(stack.home)


def test_a_command_sees_connections_of_the_database(stack: Stack) -> None:
    add(stack, "for_commands", conn_type="spark", host="local[4]")
    code = "from airflow_checkpoint_provider.hooks.connections import find_connection as find\n"
    code += "print('host', find('for_commands').host, 'and', find('nowhere'))"
    assert "host local[4] and None\n" in stack.run("python", "-c", code)


def test_without_the_connection_only_a_local_master_has_a_place(stack: Stack) -> None:
    code = """
from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
for master in ("local[*]", "yarn", None):
    try:
        print("root", master, CheckpointStorageHook(master=master).root())
    except StoreMisconfigured as error:
        print("refused", master, error)
"""
    local, yarn, none = (line for line in stack.run("python", "-c", code).splitlines() if line[:4] in ("root", "refu"))
    assert local == f"root local[*] file://{stack.home}/checkpoints"
    assert yarn.startswith("refused yarn There is no connection 'checkpoint_default'")
    assert none.startswith("refused None There is no connection 'checkpoint_default'")


def test_a_task_that_knows_no_master_uses_that_place_if_it_holds_the_job(stack: Stack) -> None:
    (stack.home / "checkpoints" / "jobs" / "known").mkdir(parents=True)
    code = """
from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
for job in ("known", "unknown"):
    try:
        print("root", job, CheckpointStorageHook().get_store_of(job).uri)
    except StoreMisconfigured as error:
        print("refused", job, error.code)
"""
    said = [line for line in stack.run("python", "-c", code).splitlines() if line[:4] in ("root", "refu")]
    assert said == [f"root known file://{stack.home}/checkpoints", "refused unknown CKP641"]


def test_the_form_asks_for_the_root_and_for_what_s3_needs(stack: Stack) -> None:
    kinds = {kind["connection_type"]: kind for kind in stack.client.call("GET", "/ui/connections/hook_meta")}
    form = kinds["checkpoint_storage"]
    assert form["hook_name"] == "Checkpoint Storage"
    assert {"root", "endpoint_url", "role_arn"} < set(form["extra_fields"])
    assert form["extra_fields"]["aws_session_token"]["schema"]["format"] == "password"
    assert form["standard_fields"]["login"]["title"] == "Access key id (S3)"


@pytest.mark.parametrize(("root", "works"), [("folder", True), ("file/below", False)])
def test_test_connection(stack: Stack, tmp_path: Path, root: str, works: bool) -> None:
    (tmp_path / "file").touch()
    extra = f'{{"root": "{tmp_path / root}"}}'
    body = {"connection_id": "tested", "conn_type": "checkpoint_storage", "extra": extra}
    answer = stack.client.call("POST", "/api/v2/connections/test", body)
    assert answer["status"] is works
    assert str(tmp_path / root) in answer["message"]


@pytest.mark.parametrize(("secret", "works"), [("writer-secret", True), ("tell-nobody", False)])
def test_test_connection_to_s3(stack: Stack, s3: S3Server, bucket: str, secret: str, works: bool) -> None:
    """As the form sends it: what was left empty is null."""
    left = dict.fromkeys(("region_name", "addressing_style", "verify", "role_arn", "profile_name", "aws_session_token"))
    extra = json.dumps({"root": f"s3://{bucket}/ckp", "endpoint_url": s3.url, **left})
    body = {"connection_id": "tested", "conn_type": "checkpoint_storage", "extra": extra}
    answer = stack.client.call("POST", "/api/v2/connections/test", {**body, "login": "WRITER", "password": secret})
    assert answer["status"] is works
    assert ("can hold checkpoints" if works else "SignatureDoesNotMatch (403)") in answer["message"]
    assert "tell-nobody" not in answer["message"]
