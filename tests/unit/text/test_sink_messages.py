"""Tests of the lines about sinks. Run anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transactions import SinkRecord
from airflow_checkpoint_provider.storage import MemoryStore
from airflow_checkpoint_provider.text import sink_messages
from tests.support.acting import Job

DUE = (SinkRecord(uid="report", due=3, confirmed=1, target="/data/report"), SinkRecord(uid="done", due=2, confirmed=2))


def test_rows_that_nobody_has_committed_are_named_with_what_to_do() -> None:
    (line,) = sink_messages.uncommitted(State(sinks=DUE))
    assert line == (
        "sink 'report': 2 writes of completed checkpoints may not be committed to /data/report: the driver ended before it said so. Start"
        " the job again, or clear its task: it commits them first, and computes nothing that it has stored  [CKP156]"
    )


def test_running_driver_commits_them_itself() -> None:
    job = Job(MemoryStore())
    job.plan()
    assert job.state.starting()
    assert sink_messages.uncommitted(job.state) == []
    job.start(2)
    assert sink_messages.uncommitted(job.state) == []
