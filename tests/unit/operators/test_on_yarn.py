"""In cluster mode on YARN the end of ``spark-submit`` is not that of the driver. A script stands in for both; there is no cluster here."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from airflow_checkpoint_provider.hooks import driver_monitor
from airflow_checkpoint_provider.hooks.driver_monitor import FollowedLaunch, OnAttach
from airflow_checkpoint_provider.hooks.spark_output import SparkOutput
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.operators import mixin
from tests.support.waiting import wait_until
from tests.unit.operators.submissions import execute

APPLICATION = "application_1795739932863_0001"
DRIVER = """#!{python}
import os, sys, time
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal, utc_now
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, RefusedStart
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.handover import LaunchSettings
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.storage import open_store

settings = LaunchSettings.from_confs(dict(word.split("=", 1) for word in sys.argv if word.startswith("spark.checkpointed.")))
store, keys = open_store(settings.root), Keys(settings.history)
journal = Journal(store, keys, By("driver", "", ""))

def refuse(code, text):
    beat = Beat(launch=settings.launch, refusal=RefusedStart(code=code, text=text))
    Heart(store, keys.driver_beat(settings.launch), beat).pulse()

def begin(driver="one"):
    journal.append(c.StartAttempt(token=settings.token, try_number=settings.try_number, driver=driver))
    epoch = journal.state.last_epoch
    Heart(store, keys.attempt_beat(epoch), Beat(epoch=epoch, attached_at=utc_now(), spark_application="{application}")).pulse()
    return epoch

def wait_for(sign):
    until = time.monotonic() + 60
    while not os.path.exists(os.path.join(os.path.dirname(sys.argv[0]), sign)):
        time.sleep(0.02)
        assert time.monotonic() < until, sign

def end(epoch, outcome, code):
    journal.append(c.EndAttempt(epoch=epoch, outcome=outcome, exit_code=code, reported_by="driver"))

print("Submitted application {application}", flush=True)
{script}
"""
FAILED = "print('INFO Client: Application report for {application} (state: FAILED)'); sys.exit(1)"

OUTLIVES = """
if os.fork():
    wait_for('attached 1')
    os._exit(1)
os.close(1), os.close(2)
epoch = begin()
wait_for('followed')
end(epoch, 'finished', 0)
"""


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.2")


@pytest.fixture(autouse=True)
def _signs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files beside ``spark-submit`` tell it that the task has seen an attempt, and that the task follows without it."""

    def follow(
        launch: FollowedLaunch, stop: threading.Event, *, on_attach: OnAttach, restarts: bool = False, **how: Any
    ) -> Any:
        def attached(attempt: int | None) -> None:
            on_attach(attempt)
            (folder / "bin" / f"attached {attempt}").touch()

        if not restarts:
            (folder / "bin" / "followed").touch()
        return driver_monitor.follow(launch, stop, on_attach=attached, restarts=restarts, **how)

    monkeypatch.setattr(mixin, "follow", follow)


def acts(folder: Path, script: str) -> None:
    """Let ``spark-submit`` do this, in the place of a cluster and its driver."""
    script = script.format(application=APPLICATION)
    text = DRIVER.format(python=sys.executable, application=APPLICATION, script=script)
    (folder / "bin" / "spark-submit").write_text(text)
    (folder / "argv").touch()


def submit(folder: Path, **options: Any) -> None:
    execute(folder, **{"conn_id": "yarn", **options})


def test_refusal_for_good_fails_without_retry_whatever_the_code_of_spark_submit(folder: Path) -> None:
    acts(folder, f"refuse('CKP607', 'boto3 is not there'); {FAILED}")
    with pytest.raises(AirflowFailException, match="boto3 is not there"):
        submit(folder)


def test_refusal_that_another_driver_causes_may_be_retried(folder: Path) -> None:
    acts(folder, f"refuse('CKP131', 'another driver lives'); {FAILED}")
    with pytest.raises(AirflowException, match="replaced, stopped or suspended") as raised:
        submit(folder)
    assert not isinstance(raised.value, AirflowFailException)


def test_code_that_the_driver_announced_counts(folder: Path) -> None:
    acts(folder, f"end(begin(), 'failed', 3); refuse('CKP605', 'a uid is used twice'); {FAILED}")
    with pytest.raises(AirflowFailException, match="a uid is used twice"):
        submit(folder)


def test_driver_that_was_killed_has_no_exit_code(folder: Path) -> None:
    acts(folder, f"begin(); {FAILED}")
    with pytest.raises(AirflowException, match=r"attempt 1 failed \(exit code unknown\)"):
        submit(folder)


def test_driver_that_outlives_spark_submit_is_followed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As after a restart of the resource manager, or when ``spark-submit`` alone was killed."""
    acts(folder, OUTLIVES)
    submit(folder)
    said = capsys.readouterr().out
    assert f"spark-submit has ended, but {APPLICATION} may still run on YARN" in said
    assert "[CKP503]" in said


def test_driver_whose_application_yarn_has_forgotten_is_followed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a restart of the resource manager without its state. ``spark-submit`` says this, and ends."""
    acts(folder, f"print('ERROR Client: Application {{application}} not found.', flush=True)\n{OUTLIVES}")
    submit(folder)
    said = capsys.readouterr().out
    assert f"YARN does not know {APPLICATION} any more" in said
    assert said.index("[CKP521]") < said.index("[CKP503]")


def test_driver_that_yarn_has_forgotten_and_ended_is_told_apart_from_a_failure(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forgot = "print('ERROR Client: Application {application} not found.'); sys.exit(1)"
    acts(folder, f"end(begin(), 'failed', 143); {forgot}")
    with pytest.raises(AirflowException, match=r"attempt 1 failed \(exit code 143: SIGTERM\)"):
        submit(folder)
    said = capsys.readouterr().out
    assert "[CKP521]" in said
    assert "[CKP503]" not in said


def test_application_that_waits_without_its_spark_submit_is_killed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next try submits another, and two would wait."""
    records_kills(folder)
    acts(folder, "os.kill(os.getpid(), 9)")
    with pytest.raises(AirflowException, match=r"the driver failed \(exit code 137: SIGKILL\) before it attached"):
        submit(folder)
    said = capsys.readouterr().out
    assert f"spark-submit has ended before the driver of {APPLICATION} attached" in said
    assert "[CKP522]" in said
    wait_until((folder / "killed").exists)


def test_application_that_has_failed_is_not_killed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    acts(folder, FAILED)
    with pytest.raises(AirflowException, match="before it attached"):
        submit(folder)
    assert "[CKP522]" not in capsys.readouterr().out


def test_driver_that_the_cluster_starts_again_is_logged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    acts(
        folder,
        "end(begin(), 'failed', None); wait_for('attached 1')\nepoch = begin('two'); wait_for('attached 2'); end(epoch, 'finished', 0)",
    )
    submit(folder)
    said = capsys.readouterr().out
    assert "after attempt 1 the cluster has started the driver again, attempt 2, from nothing.  [CKP119]" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"yarn_track_via_rm_api": True}, "yarn_resourcemanager_webapp_address"),
        ({"conf": {"spark.yarn.submit.waitAppCompletion": "false"}}, "write yarn_track_via_rm_api=True"),
    ],
)
def test_task_that_would_not_see_its_driver_end_submits_nothing(
    folder: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(AirflowFailException, match=said):
        submit(folder, **options)
    assert not (folder / "argv").exists()
    assert not list((folder / "checkpoints").iterdir())


# -- kills -------------------------------------------------------------------------------------------------------------


def killer(lines: list[str]) -> CheckpointedSparkSubmitHook:
    hook = CheckpointedSparkSubmitHook(conn_id="yarn", output=SparkOutput(lines.append))
    hook.adopt_yarn_application(APPLICATION)
    return hook


def records_kills(folder: Path) -> None:
    """Let the command of YARN write its arguments into the file ``killed``."""
    (folder / "bin" / "yarn").write_text(f'#!/bin/sh\necho "$@" > {folder}/new; mv {folder}/new {folder}/killed\n')
    (folder / "bin" / "yarn").chmod(0o755)


def test_application_is_killed_by_the_command_of_yarn(folder: Path) -> None:
    records_kills(folder)
    killer([])._kill_yarn_application(APPLICATION)
    wait_until((folder / "killed").exists)
    assert (folder / "killed").read_text() == f"application -kill {APPLICATION}\n"


def test_application_that_nothing_can_kill_is_named(folder: Path) -> None:
    lines: list[str] = []
    killer(lines)._kill_yarn_application(APPLICATION)
    assert f"{APPLICATION} was not killed" in lines[0]
    assert lines[0].endswith("[CKP504]")


def test_application_is_killed_by_rest_if_the_connection_has_the_address(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Any]] = []

    class Answer:
        status_code = 202

    def put(url: str, json: Any, **_: Any) -> Answer:
        asked.append((url, json))
        return Answer()

    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "http://rm:8088"}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.requests.put", put)
    hook = killer([])
    monkeypatch.delenv("AIRFLOW_CONN_YARN")  # a task that is killed has no time for a look-up
    hook._kill_yarn_application(APPLICATION)
    assert asked == [(f"http://rm:8088/ws/v1/cluster/apps/{APPLICATION}/state", {"state": "KILLED"})]
