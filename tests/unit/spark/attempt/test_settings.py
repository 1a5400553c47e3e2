"""The settings of a script without Airflow: which source counts, and what the log says about it. Runs anywhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepLatest, KeepWithin
from airflow_checkpoint_provider.errors import InvalidConfig, InvalidName, WrongUse
from airflow_checkpoint_provider.spark.attempt.settings import Settings, script, settings_alone

SCRIPT = Path("/srv/jobs/delays.py")
OWN: dict[str, Any] = {"job_id": None, "root": None, "checkpointing": None, "restore": "latest"}


def settings(confs: dict[str, str], file: Path | None = SCRIPT, **own: Any) -> Settings:
    prefixed = {f"spark.checkpointed.{name}": value for name, value in confs.items()}
    return settings_alone({"spark.master": "local[2]", **prefixed}, file, **{**OWN, **own})


def test_defaults_are_the_scripts_name_and_a_folder_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = settings({})
    assert (found.job, found.root, found.restore) == ("delays", f"{tmp_path}/checkpoints", "latest")
    assert found.notes == (f"job 'delays' (the script's name), checkpoints below {tmp_path}/checkpoints (default)",)


def test_scripts_own_settings_are_named() -> None:
    found = settings({}, job_id="orders", root="/lake", restore="none")
    assert (found.job, found.root, found.restore, found.prefix) == ("orders", "/lake", "none", "jobs/orders/job")
    assert found.notes == ("job 'orders' (job_id=), checkpoints below /lake (root=)",)


def test_confs_without_a_launch_are_used_and_named() -> None:
    options = {"timeout": "1 min", "max_concurrent": 2, "retention": {"keep": "latest", "count": 5}}
    found = settings(
        {"root": "s3://lake/ckp", "job": "orders", "restore": "none", "checkpointing": json.dumps(options)}
    )
    assert (found.root, found.job, found.restore) == ("s3://lake/ckp", "orders", "none")
    assert found.config == CheckpointConfig(timeout="1 min", max_concurrent=2, retention=KeepLatest(5))
    assert found.notes == (
        "job 'orders' (spark.checkpointed.job), checkpoints below s3://lake/ckp (spark.checkpointed.root)",
        "restore is none (spark.checkpointed.restore)",
        f"checkpointing is {json.dumps(options)} (spark.checkpointed.checkpointing)",
    )


def test_conf_wins_over_the_script_and_says_so() -> None:
    found = settings({"root": "/lake", "restore": "none"}, root="/elsewhere", restore="7")
    assert (found.root, found.restore) == ("/lake", "none")
    assert found.notes[2:] == (
        "spark.checkpointed.root is used, not root of the script",
        "spark.checkpointed.restore is used, not restore of the script",
    )


def test_conf_holds_what_a_task_would_hand_over() -> None:
    config = CheckpointConfig(interval="1 min", retention=KeepLatest(2) | KeepWithin(days=7), tolerable_failures=3)
    assert settings({"checkpointing": json.dumps(config.to_json())}).config.to_json() == config.to_json()


@pytest.mark.parametrize("name", ["rot", "history", "version", "allow_non_restored_state", "s3.endpoint"])
def test_conf_without_effect_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"^spark\.checkpointed\.{name}: .*knows only spark\.checkpointed\.root"):
        settings({name: "x"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("3", "is not an object"),
        ('{"timeuot": "1 min"}', "timeuot: CheckpointConfig has no such option"),
        ('{"retention": 3}', "is not a retention policy"),
        ('{"timeout": "soon"}', "is not a duration"),
    ],
)
def test_configuration_in_a_conf_that_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        settings({"checkpointing": text})


def test_job_ids_that_differ_are_refused() -> None:
    with pytest.raises(InvalidName, match=r"job_id='orders'\) differs from spark\.checkpointed\.job='delays'"):
        settings({"job": "delays"}, job_id="orders")


def test_program_without_a_file_needs_a_job_id() -> None:
    with pytest.raises(WrongUse, match=r'no name that its job could take\. Write CheckpointedJob\(job_id="\.\.\."\)'):
        settings({}, None)
    assert settings({}, None, job_id="orders").job == "orders"
    assert settings({"job": "orders"}, None).job == "orders"


def test_main_script_is_a_file_that_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "delays.py"
    file.touch()
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", str(file), raising=False)
    monkeypatch.setattr(sys, "argv", [str(file)])
    assert script() == file
    for argument in ("", "-", "-c", str(tmp_path / "gone.py")):
        monkeypatch.setattr(sys, "argv", [argument])
        assert script() is None
    monkeypatch.setattr(sys, "argv", [str(file)])  # as the kernel of a notebook
    monkeypatch.delattr(main, "__file__")
    assert script() is None
