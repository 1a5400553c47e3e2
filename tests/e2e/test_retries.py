"""On a real Airflow: a policy that fails a task which gets no further, notifications, sensors of health, and a job in a task's process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.keys import History
from tests.e2e.lab import PATIENCE, TASK, Lab, Run, kill, parent

pytestmark = pytest.mark.timeout(1800)


def told(folder: Path) -> list[str]:
    """Return the notifications that have arrived."""
    file = folder / "told"
    return file.read_text().split("\n\n")[:-1] if file.exists() else []


def decision(run: Run, try_number: int) -> dict[str, Any]:
    """Return what Airflow logs of the policy's decision."""
    entries = run.client.entries(run.dag, run.id, TASK, try_number)
    (number,) = [number for number, entry in enumerate(entries) if entry.get("event") == "Retry policy decision"]
    return entries[number]


@pytest.mark.slow  # test_checkpoint.py of the retry policies decides about such journals
def test_task_that_gets_no_further_is_failed_although_it_has_retries(lab: Lab) -> None:
    """Two tries complete a checkpoint each, and three none. The policy's delay counts, not that of the task."""
    run = lab.start("gets_stuck")
    run.ended("failed", 5)
    assert [bool(attempt.first_completed) for attempt in run.state.attempts] == [True, True, False, False, False]
    decisions = [decision(run, number) for number in (1, 2, 3, 4, 5)]
    assert [one["action"] for one in decisions] == ["retry"] * 4 + ["fail"]
    assert decisions[1]["reason"] == "this try has completed a newer checkpoint, chk-2"
    assert decisions[2]["reason"] == (
        "1 try in a row has completed no newer checkpoint than chk-2; the task fails after 3"
    )
    assert (
        "3 tries in a row have completed no newer checkpoint than chk-2 (try 3, try 4, try 5)" in decisions[4]["reason"]
    )
    assert decisions[4]["reason"].endswith("[CKP510]")
    *retried, failed = told(run.folder)
    assert [text.splitlines()[0] for text in retried] == [
        f"Subject: RETRY of gets_stuck.job, run {run.id}: try {number} of 11 failed" for number in (1, 2, 3, 4)
    ]
    assert re.search(r"checkpoint +chk-1, completed .* at stage 'stage-1', \d+ s ago", retried[0])
    assert "the next attempt continues from chk-1, and repeats " in retried[0]
    assert failed.startswith(f"Subject: FAILED gets_stuck.job, run {run.id}: try 5 of 11 failed")
    for words in (
        "attempt 5 failed (exit code 1)",
        "no further  3 tries in a row",
        f"airflow checkpoints story {TASK}",
    ):
        assert words.replace(TASK, f"gets_stuck.{TASK} {run.id}") in failed


@pytest.mark.slow  # test_checkpoint.py of the notifications takes such a context
def test_task_that_the_scheduler_fails_is_told_by_the_dag_processor(lab: Lab) -> None:
    """Its templates are not rendered there, and its connection is in Airflow's database."""
    run = lab.at_two("lost_s3")
    process, driver = run.process(), run.driver()
    kill(parent(process), process)
    run.ended("failed", 1)
    lab.wait_until(lambda: told(run.folder), lambda: f"nobody was told: {run.report()}")
    kill(driver)
    text = told(run.folder)[0]  # Airflow may call a second time
    assert text.startswith(f"Subject: FAILED lost_s3.job, run {run.id}: try 1 of 1 failed")
    for words in (
        "Airflow lost the process of this try, which has reported nothing",
        "checkpoint  chk-1, completed ",
        "attempt 1 has not recorded its end, and may still run. After it, the job continues from chk-1",
        "--conn-id in_s3",
    ):
        assert words in text, text


@pytest.mark.slow  # test_health.py of the sensors judges such journals
def test_health_of_a_job_is_green_stale_or_unprotected(lab: Lab) -> None:
    job = lab.at_two()
    folder = lab.folder("health")
    folder.mkdir(parents=True)
    with lab.writing:
        run = job.client.trigger("health", {"folder": str(folder), "run": job.id})
    assert job.client.wait_for_run("health", run, PATIENCE) == "failed"
    tasks = {name: job.client.task("health", run, name) for name in ("green", "stale", "unprotected")}
    log = {name: "\n".join(job.client.logs("health", run, name, 1)) for name in tasks}
    assert {name: (task["state"], task["try_number"]) for name, task in tasks.items()} == {
        "green": ("success", 1),
        "stale": ("failed", 1),
        "unprotected": ("failed", 1),
    }, log
    assert f"stages.job, run {job.id} is healthy: its work is saved up to " in log["green"]
    assert re.search(r"is not healthy: its work is saved up to .* \(chk-1\), .*\[CKP247\]", log["stale"])
    assert re.search(r"NOT PROTECTED: a crash of attempt 1 would cost .*\[CKP247\]", log["unprotected"])
    assert sorted(text.splitlines()[0].split(",")[0] for text in told(folder)) == [
        "Subject: FAILED health.stale",
        "Subject: FAILED health.unprotected",
    ]
    job.open("two")
    job.ended("success", 1)


@pytest.mark.slow  # test_in_task.py refuses a job in the execute of any operator
def test_job_in_the_process_of_a_task_is_refused(lab: Lab) -> None:
    with lab.writing:
        run = lab.stack.client.trigger("inside_of_a_task")
    assert lab.stack.client.wait_for_run("inside_of_a_task", run, PATIENCE) == "failed"
    log = "\n".join(lab.stack.client.logs("inside_of_a_task", run, "job", 1))
    assert "CheckpointedJob was opened in the process of the Airflow task 'job'" in log
    assert "[CKP605]" in log
    assert lab.journal(History("inside")).catch_up().n < 0
