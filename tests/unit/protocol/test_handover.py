"""The launch settings that a task hands over to its driver as Spark confs. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.errors import CheckpointError, InvalidConfig, VersionMismatch
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.handover import PREFIX, LaunchReference, LaunchSettings

SETTINGS = LaunchSettings(
    root="s3://lake/checkpoints",
    history="jobs/etl.totals/job",
    launch=3,
    job="etl.totals",
    token=Token(dag="etl", run="manual__1", task="totals"),
    try_number=2,
)
OPTIONS = {
    "nothing else": SETTINGS,
    "S3": replace(SETTINGS, s3={"endpoint": "https://store:9000", "style": "path"}),
    "no savepoint root": replace(SETTINGS, savepoint_roots=()),
    "savepoint roots": replace(SETTINGS, savepoint_roots=("s3://lake/checkpoints", "file:///mnt/savepoints")),
    "checkpointing": replace(SETTINGS, checkpointing=CheckpointConfig(timeout=120.0, retention=KeepAll())),
    "any state may be dropped": replace(SETTINGS, allow_non_restored_state=True),
    "listed states may be dropped": replace(SETTINGS, allow_non_restored_state={"a": "drop", "ü": "drop"}),
    "any state may be kept": replace(SETTINGS, allow_non_restored_state="keep"),
    "each state has its own decision": replace(SETTINGS, allow_non_restored_state={"weekly": "keep", "old": "drop"}),
}


@pytest.mark.parametrize("settings", OPTIONS.values(), ids=OPTIONS)
def test_settings_come_back_from_confs_unchanged(settings: LaunchSettings) -> None:
    confs = settings.to_confs()
    assert all(name.startswith(PREFIX) for name in confs)
    assert LaunchSettings.from_confs({"spark.app.name": "totals", **confs}) == settings


def test_options_that_are_not_set_have_no_conf() -> None:
    names = {name.removeprefix(PREFIX) for name in SETTINGS.to_confs()}
    assert names == {"root", "history", "job", "launch", "task", "version"}


def test_a_script_without_task_has_no_settings() -> None:
    assert LaunchSettings.from_confs({"spark.app.name": "totals"}) is None
    assert LaunchReference.from_confs({"spark.app.name": "totals"}) is None
    unprefixed = {name.removeprefix(PREFIX): value for name, value in SETTINGS.to_confs().items()}
    assert LaunchReference.from_confs(unprefixed) is None


def test_confs_of_another_version_are_refused_and_the_place_is_still_known() -> None:
    place = {"root": "s3://lake/checkpoints", "history": "jobs/etl.totals/job", "launch": "3"}
    confs = {f"{PREFIX}{name}": value for name, value in (place | {"version": "0.0.1", "s3.style": "path"}).items()}
    with pytest.raises(VersionMismatch, match=r"version 0\.0\.1 of the package, the driver has "):
        LaunchSettings.from_confs(confs)
    found = LaunchReference.from_confs(confs)
    assert found == LaunchReference(
        root="s3://lake/checkpoints", history="jobs/etl.totals/job", launch=3, s3={"style": "path"}
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("launch", "three"),
        ("task", "{"),
        ("task", "[]"),
        ("task", '{"token":7,"try":1}'),
        ("checkpointing", '{"timeout_s":60}'),
        ("checkpointing", "7"),
        ("allow_non_restored_state", "keep"),
        ("savepoint_roots", "7"),
    ],
)
def test_confs_that_no_task_writes_are_refused(name: str, value: str) -> None:
    with pytest.raises(CheckpointError, match=r"spark\.checkpointed\.\*|timeout_s|a stored Token"):
        LaunchSettings.from_confs(SETTINGS.to_confs() | {f"{PREFIX}{name}": value})


@pytest.mark.parametrize("name", ["root", "history"])
def test_place_without_a_conf_is_refused(name: str) -> None:
    confs = {key: value for key, value in SETTINGS.to_confs().items() if key != f"{PREFIX}{name}"}
    with pytest.raises(InvalidConfig, match=name):
        LaunchReference.from_confs(confs)
