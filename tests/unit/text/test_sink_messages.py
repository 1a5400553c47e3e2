"""Tests of the lines about sinks. Run anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.errors import StoreUnavailable
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transactions import Origin, SinkRecord, Transaction
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


def test_lines_about_one_write_or_one_row_are_in_the_singular() -> None:
    one, two = (sink_messages.taken_out("report", "/out", count, ["alone-2"]) for count in (1, 2))
    assert "1 write of later runs (alone-2) was taken out of /out" in one
    assert "2 writes of later runs (alone-2) were taken out of /out" in two
    origin = Origin(plan="p", inputs="i")
    held = Transaction(name="t", version=1, run="alone-1", write=0, origin=origin, rows=1, prepared={})
    assert "Its 1 row is replaced" in sink_messages.write_repeated("report", held, "its plan changed")
    unread = sink_messages.leftovers_unknown("report", "orders", 1, StoreUnavailable("it is down"))
    assert "1 transaction of orders stays prepared" in unread
    ahead = sink_messages.sink_is_ahead("report", "/out", 1, ["alone-2"], "checkpoints restore orders")
    assert "holds 1 write of later runs (alone-2) that the restored checkpoint does not hold. When those runs" in ahead
