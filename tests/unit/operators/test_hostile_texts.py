"""Tasks that read a journal with hostile texts: their logs and errors hold no line that it forged. Runs in Airflow (worker)."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException

from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.operators import (
    AbortCheckpointOperator,
    CheckpointedSparkSubmitOperator,
    FinalizeCheckpointOperator,
    RestoreOperator,
    StopWithSavepointOperator,
    TriggerCheckpointOperator,
    TriggerSavepointOperator,
)
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor, CheckpointCompletedSensor
from airflow_checkpoint_provider.storage import Store
from tests.fuzz.hostile import FORGED, HOSTILE, JOB, KEYS, OBJECTS, RUN, planted_everywhere
from tests.support.tasks import OTHER, run

STEERS = ("\x1b[2J", "\x1b]0;", "\x07", "\x9b", "\u202e", "\u2028", "\u2066", "\x7f")
WAITS: dict[str, Any] = {"poke_interval": 0.01, "timeout": 0, "deferrable": False}


def pointer(store: Store, number: int) -> str:
    return f"{store.uri}/{KEYS.checkpoint(number)}"


TASKS: list[Callable[[Store], BaseOperator]] = [
    *(lambda store, n=n: AbortCheckpointOperator(task_id="t", checkpoint=pointer(store, n)) for n in (1, 2, 3, 5, 9)),
    *(lambda store, n=n: FinalizeCheckpointOperator(task_id="t", checkpoint=pointer(store, n)) for n in (2, 3, 5)),
    *(
        lambda store, n=n: CheckpointAcknowledgedSensor(task_id="t", checkpoint=pointer(store, n), **WAITS)
        for n in (2, 3, 5)
    ),
    *(
        lambda store, where=where: RestoreOperator(task_id="t", job=JOB, run=RUN, restore=where)
        for where in ("none", "run-start", "latest", "chk-2", "chk-9")
    ),
    lambda store: CheckpointCompletedSensor(task_id="t", job=JOB, run=RUN, **WAITS),
    lambda store: CheckpointCompletedSensor(task_id="t", checkpoint=pointer(store, 2), **WAITS),
    lambda store: TriggerCheckpointOperator(task_id="t", job=JOB, run=RUN, wait_for_completion=False),
    lambda store: TriggerSavepointOperator(task_id="t", job=JOB, run=RUN, wait_for_completion=False),
    lambda store: StopWithSavepointOperator(task_id="t", job=JOB, run=RUN),
]


def check(text: str) -> None:
    assert not any(steers in text for steers in STEERS), text
    assert not any(line.lstrip().startswith(FORGED) for line in text.splitlines()), text


@pytest.fixture(params=[name for name in OBJECTS if name.startswith("entry")])
def hostile(request: pytest.FixtureRequest, store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store with a journal that has hostile text in each field that may hold it."""
    monkeypatch.setenv(VARIABLE, "0.01")
    store.overwrite(KEYS.entry(0), canonical(planted_everywhere(request.param)))
    return store


@pytest.mark.parametrize("make", TASKS)
def test_task_logs_and_raises_no_forged_line(
    make: Callable[[Store], BaseOperator], hostile: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with DAG(OTHER, schedule=None):
        task = make(hostile)
    try:
        run(task)
    except (AirflowException, CheckpointError) as error:
        check("".join(traceback.format_exception(error)))
    check("".join(capsys.readouterr()))


def test_lines_of_a_launch_are_logged_as_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with DAG(OTHER, schedule=None):
        task = CheckpointedSparkSubmitOperator(task_id="job", application="job.py")
    task._output.log([HOSTILE])
    told = "".join(capsys.readouterr())
    check(told)
    assert FORGED in told
