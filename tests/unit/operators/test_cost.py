"""S3 requests of tasks that drive a checkpoint, per step and per minute of waiting."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_checkpoint_provider.operators import (
    AbortCheckpointOperator,
    FinalizeCheckpointOperator,
    NotifyCheckpointCompleteOperator,
)
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor, CheckpointCompletedSensor
from airflow_checkpoint_provider.storage import open_store
from tests.support.acting import Job
from tests.support.s3server import S3Server
from tests.support.tasks import OTHER, run, ti, trigger


class Counted:
    """A job with its checkpoints in S3, and the counter of its requests."""

    def __init__(self, server: S3Server, root: str) -> None:
        self.server, self.job = server, Job(open_store(root, s3=server.settings()))
        self.job.start()

    @contextmanager
    def costs(self, **requests: int) -> Iterator[None]:
        before = Counter(self.server.requests)
        yield
        assert dict(self.server.requests - before) == requests

    def task(self, kind: Any, checkpoint: Any, **options: Any) -> Any:
        with DAG(OTHER, schedule=None):
            return kind(task_id="step", checkpoint=checkpoint, **options)


@pytest.fixture
def counted(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Counted:
    root = f"s3://{bucket}/ckp"
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(s3.connection(root)))
    return Counted(s3, root)


# A new process reads the journal: its boundaries (0, 64), what follows, and the next boundary again, so that
# it can believe that. Here the journal has two entries before the trigger's, and three after it.
COLD = 2  # the boundaries 0 and 64; and a listing of what lies behind the end
BELIEVED = 1


def test_cost_of_a_completed_checkpoint(counted: Counted) -> None:
    with counted.costs(GET=COLD + 2 + BELIEVED + 1 + 1, LIST=1, PUT=1):  # and the driver's heartbeat
        asked = run(trigger(gated=True))
    counted.job.acknowledge(1)
    cold = COLD + 3 + BELIEVED
    with counted.costs(GET=cold + 1, LIST=1):
        run(counted.task(CheckpointAcknowledgedSensor, asked))
    with counted.costs(GET=cold + 3, LIST=1, PUT=2):  # the acknowledgement; seal and entry, each read back or believed
        run(counted.task(FinalizeCheckpointOperator, asked))
    counted.job.coordinator.confirm_commits(1)
    with counted.costs(GET=cold + 2, LIST=1):  # two entries more
        run(counted.task(NotifyCheckpointCompleteOperator, asked))


def test_cost_of_an_aborted_checkpoint(counted: Counted) -> None:
    asked = run(trigger(gated=True))
    with counted.costs(GET=COLD + 3 + BELIEVED + 3, LIST=1, PUT=1):  # one to check whether the abort is still possible
        run(counted.task(AbortCheckpointOperator, asked))


@pytest.mark.parametrize(("kind", "each"), [(CheckpointAcknowledgedSensor, 2), (NotifyCheckpointCompleteOperator, 1)])
def test_cost_of_a_minute_of_waiting(counted: Counted, kind: Any, each: int) -> None:
    """Twelve polls; a trigger runs the same code. The heartbeat of the driver is read every ten seconds: here at the first poll."""
    sensor = counted.task(kind, run(trigger(gated=True)))
    assert sensor.poke_interval * 12 == 60
    with counted.costs(GET=COLD + 3 + BELIEVED + each - 1 + 1, LIST=1):
        sensor.poke({"ti": ti()})
    with counted.costs(GET=12 * each):
        for _ in range(12):
            assert not sensor.poke({"ti": ti()})


@pytest.mark.parametrize("retained", [1, 10])
def test_cost_of_a_minute_of_waiting_for_checkpoints(counted: Counted, retained: int) -> None:
    """Each poll costs one request, however many checkpoints are kept; a trigger runs the same code."""
    counted.job.end("failed")
    counted.job.start(2, retention=KeepAll())
    for number in range(retained):
        counted.job.complete(counted.job.coordinator.trigger(Request(token=f"barrier {number}")))
    with DAG(OTHER, schedule=None):
        sensor = CheckpointCompletedSensor(task_id="healthy", job="orders", count=retained + 1)
    sensor.poke({"ti": ti()})
    with counted.costs(GET=12):
        for _ in range(12):
            assert not sensor.poke({"ti": ti()})
