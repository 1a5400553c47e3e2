"""What a fork does with the writes that its restore point holds: another job has made them, in a run of the same name. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.transactions import Origin
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from tests.unit.spark.sinks.attempts import UID, Attempts, write

CaptureFixture = pytest.CaptureFixture[str]
NUMBERED = Origin(plan="", inputs="")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """The attempts of the job from which another one is forked. Both have a run ``alone-1``."""
    return Attempts(monkeypatch, run_key="alone-1")


def waits(job: Attempts, *rows: str) -> None:
    """Let the job write rows that wait for a gate."""
    sinks = job.begin()
    state = job.open(sinks, gated=True)
    for text in rows:
        write(sinks, state, text)
    job.checkpoint(sinks, publishes=False)


@pytest.mark.parametrize("noted", [False, True])
@pytest.mark.parametrize("rows", [["a"], ["a", "b"], ["other"], []])
def test_retry_of_a_fork_does_all_its_writes_and_leaves_those_of_the_first_job(
    job: Attempts, rows: list[str], *, noted: bool
) -> None:
    """``noted``: the restore point says that they are committed. A checkpoint that publishes them does not say so yet."""
    sinks = job.run("a", "b")
    if noted:
        job.checkpoint(sinks)
    fork = job.fork()
    for _ in range(2):
        fork.finish(fork.run(*rows))
    assert fork.readers_see == sorted(["a", "b", *rows])


@pytest.mark.parametrize("dies", ["before it opens the sink", "after it"])
def test_rows_of_the_first_job_that_wait_are_no_writes_of_the_fork(job: Attempts, dies: str) -> None:
    waits(job, "a", "b")
    fork = job.fork()
    if dies == "after it":
        waits(fork)
    sinks = fork.begin()
    state = fork.open(sinks, gated=True)
    write(sinks, state, "a")
    assert not sinks.repeating("second")
    fork.finish(sinks)
    assert fork.readers_see == ["a", "a", "b"]


def test_retry_of_a_fork_that_does_not_open_the_sink_ends_well(job: Attempts, capsys: CaptureFixture) -> None:
    job.checkpoint(job.run("a"))
    fork = job.fork()
    sinks = fork.begin()
    fork.end(sinks)
    assert not sinks.left_out()
    assert "[CKP169]" not in capsys.readouterr().out


def test_rows_of_the_first_job_that_wait_are_left_out_by_no_attempt_of_a_fork(job: Attempts) -> None:
    waits(job, "a")
    first = job.fork().begin(elsewhere=True)
    retry = job.fork().begin()
    assert [set(sinks.left_out()) for sinks in (first, retry)] == [{UID}, {UID}]


def test_retry_of_a_fork_may_give_the_sink_another_name(job: Attempts) -> None:
    job.run("a")
    fork = job.fork()
    sinks = fork.begin()
    write(sinks, fork.open(sinks, "rapport"), "a")
    fork.finish(sinks)
    assert fork.readers_see == ["a", "a"]


def test_retry_of_a_fork_may_write_to_another_target(job: Attempts, capsys: CaptureFixture) -> None:
    waits(job, "a")
    fork = job.fork()
    sinks = fork.begin()
    assert fork.open(sinks, path="/mine").transactions == []
    assert "sink 'report' writes to /mine. The restored checkpoint holds writes to /out" in capsys.readouterr().out


def test_retry_of_a_fork_overwrites_and_is_refused_for_no_write_of_the_first_job(job: Attempts) -> None:
    job.checkpoint(job.run("a", "b", mode="overwrite"))
    fork = job.fork()
    fork.finish(fork.run("b", mode="overwrite"))
    assert fork.readers_see == ["b"]
    assert fork.held[UID].sink.transactions[-1].write == 0  # type: ignore[union-attr]


def test_retry_of_a_fork_counts_its_own_numbers(job: Attempts) -> None:
    def number(sinks: Sinks, *, origin: Origin = NUMBERED) -> int:
        return sinks.number("rows", origin)[1]

    first = job.begin()
    assert [number(first), number(first)] == [1, 2]
    job.checkpoint(first)
    fork = job.fork()
    sinks = fork.begin()
    assert number(sinks, origin=replace(NUMBERED, earlier_stages="other")) == 1
    fork.finish(sinks)
    again = fork.begin()
    assert number(again, origin=replace(NUMBERED, earlier_stages="other")) == 1
    fork.finish(again)


def test_aborted_rows_of_the_first_job_are_not_said_to_be_written_again(job: Attempts, capsys: CaptureFixture) -> None:
    waits(job, "a")
    fork = job.fork()
    owner = job.begin()
    job.open(owner, gated=True).opened.abort([made.name for made in fork.held[UID].sink.transactions])  # type: ignore[union-attr]
    sinks = fork.begin()
    fork.open(sinks, gated=True)
    assert "This run does not do it again: 1 row will be missing" in capsys.readouterr().out


def test_next_fork_of_a_fork_takes_writes_of_neither_for_its_own(job: Attempts) -> None:
    waits(job, "a")
    fork = job.fork()
    waits(fork, "b")
    last: Any = replace(fork.fork(), history="root/last")
    last.finish(last.run("a", "b"))
    assert last.readers_see == ["a", "a", "b", "b"]


@pytest.mark.parametrize("noted", [False, True])
def test_run_that_goes_back_to_a_moved_savepoint_of_its_own_replaces_its_rows(job: Attempts, *, noted: bool) -> None:
    """The history has forgotten such a savepoint, so it counts as another history's, and the run is computed again."""
    sinks = job.run("a", "b")
    if noted:
        job.checkpoint(sinks)
    again = job.begin(elsewhere=True)
    write(again, job.open(again), "a")
    job.finish(again)
    assert job.readers_see == ["a"]
