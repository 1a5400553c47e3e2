"""The launch settings that a task hands over to its driver as Spark confs. Runs anywhere."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.errors import CheckpointError, InvalidConfig, VersionMismatch
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.handover import PREFIX, LaunchReference, LaunchSettings, handed_over

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


# -- in an environment variable ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", OPTIONS.values(), ids=OPTIONS)
def test_settings_come_back_from_the_variable_unchanged(settings: LaunchSettings) -> None:
    variable = json.dumps(settings.to_confs())
    assert LaunchSettings.from_confs(handed_over({"spark.app.name": "totals"}, variable)) == settings


@pytest.mark.parametrize("variable", [None, ""])
def test_confs_count_without_the_variable(variable: str | None) -> None:
    assert handed_over({"spark.app.name": "totals"}, variable) == {"spark.app.name": "totals"}


def test_confs_and_variable_of_one_launch_go_together() -> None:
    confs = SETTINGS.to_confs()
    assert handed_over(confs, json.dumps(confs)) == confs


@pytest.mark.parametrize(
    "other", [{"launch": 4}, {"history": "jobs/etl.totals/runs/1"}, {"root": "s3://sea/checkpoints"}]
)
def test_confs_and_variable_of_two_launches_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidConfig,
        match=r"the Spark confs name launch 3 of jobs/etl\.totals/job, and the environment variable CHECK",
    ):
        handed_over(SETTINGS.to_confs(), json.dumps(replace(SETTINGS, **other).to_confs()))


def test_confs_of_a_script_alone_give_way_to_the_launch() -> None:
    own = {f"{PREFIX}root": "/mine", f"{PREFIX}job": "mine"}
    assert LaunchSettings.from_confs(handed_over(own, json.dumps(SETTINGS.to_confs()))) == SETTINGS


@pytest.mark.parametrize("variable", ["{", "[]", "7", "{}", '{"spark.checkpointed.launch": 3}', "null", "[" * 5000])
def test_variable_that_no_task_writes_is_refused(variable: str) -> None:
    with pytest.raises(InvalidConfig, match="the environment variable CHECKPOINT_LAUNCH cannot be read"):
        handed_over({}, variable)
