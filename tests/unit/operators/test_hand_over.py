"""What a launch hands over to the operator that submits its driver. Runs where Airflow is."""

from __future__ import annotations

import json

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.operators.hand_over import HandOver

CONFS = {"spark.checkpointed.launch": "3", "spark.checkpointed.task": '{"try": 1}'}
LAUNCH, IN_IMAGE = HandOver(CONFS, "s3a://code/runtime.zip"), HandOver(CONFS, None)
OPTIONS = ["--conf", "spark.checkpointed.launch=3", "--conf", 'spark.checkpointed.task={"try": 1}']

BOTH = ["--py-files", "lib.py,s3a://code/runtime.zip"]


def test_confs_are_added_to_those_of_the_operator() -> None:
    assert LAUNCH.with_confs({"spark.executor.cores": 2}) == {"spark.executor.cores": 2, **CONFS}
    assert LAUNCH.with_confs(None) == CONFS


def test_archive_is_added_to_the_files_of_the_operator() -> None:
    assert LAUNCH.with_archive(["lib.py"]) == ["lib.py", "s3a://code/runtime.zip"]
    assert LAUNCH.with_archive(None) == ["s3a://code/runtime.zip"]
    assert IN_IMAGE.with_archive(["lib.py"]) == ["lib.py"]


def test_variables_hold_the_confs_as_json_and_the_archive() -> None:
    assert json.loads(LAUNCH.variables["CHECKPOINT_LAUNCH"]) == CONFS
    assert LAUNCH.variables["CHECKPOINT_ARCHIVE"] == "s3a://code/runtime.zip"
    assert IN_IMAGE.variables.keys() == {"CHECKPOINT_LAUNCH"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["spark-submit", "job.py"], ["spark-submit", *OPTIONS, "--py-files", "s3a://code/runtime.zip", "job.py"]),
        (
            ["env", "A=1", "/opt/spark/bin/spark-submit", "--verbose", "--py-files", "lib.py", "--conf", "a=b", "job.py", "--day", "1"],
            ["env", "A=1", "/opt/spark/bin/spark-submit", "--verbose", "--conf", "a=b", *OPTIONS, *BOTH, "job.py", "--day", "1"],
        ),
        (
            ["spark-submit", "--py-files=old.py", "--py-files=lib.py", "job.py", "--py-files", "the script's own"],
            ["spark-submit", *OPTIONS, *BOTH, "job.py", "--py-files", "the script's own"],
        ),
        (  # the option replaces the conf
            ["spark-submit", "-c", "spark.submit.pyFiles=lib.py", "job.py"],
            ["spark-submit", "-c", "spark.submit.pyFiles=lib.py", *OPTIONS, *BOTH, "job.py"],
        ),
    ],
    ids=["plain", "with options", "with several", "with a conf"],
)  # fmt: skip
def test_command_gets_the_options_of_the_launch(command: list[str], expected: list[str]) -> None:
    assert LAUNCH.with_options(command) == expected


def test_command_of_an_image_with_the_package_gets_no_archive() -> None:
    assert IN_IMAGE.with_options(["spark-submit", "job.py"]) == ["spark-submit", *OPTIONS, "job.py"]
    assert "--py-files" in IN_IMAGE.with_options(["spark-submit", "--py-files", "lib.py", "job.py"])


def test_command_of_another_program_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"the command 'hive -e select'… does not call spark-submit"):
        LAUNCH.with_options(["hive", "-e", "select", "1"])


@pytest.mark.parametrize("option", ["--conf", "-c"])
@pytest.mark.parametrize("conf", ["spark.checkpointed.root=/mine", "spark.checkpointed.launch=1"])
def test_own_confs_of_a_launch_are_refused(option: str, conf: str) -> None:
    name, _, value = conf.partition("=")
    with pytest.raises(InvalidConfig, match=f"{name}, but the task writes the confs"):
        LAUNCH.with_confs({name: value})
    with pytest.raises(InvalidConfig, match=f"{name}, but the task writes the confs"):
        LAUNCH.with_options(["spark-submit", option, conf, "job.py"])
