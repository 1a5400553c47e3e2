"""The ``with`` block of a job: what may be called when, and how the block ends its run. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.errors import CheckpointError, CheckpointFailed, InvalidConfig, WrongUse
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.spark import CheckpointedJob, job
from airflow_checkpoint_provider.spark.attempt.settings import Launched
from airflow_checkpoint_provider.spark.job_run import JobRun
from airflow_checkpoint_provider.spark.stages.part_arguments import Parts
from airflow_checkpoint_provider.storage import MemoryStore

ANY: Any = None
TASK = Launched(MemoryStore(), History("flights.delays").prefix, 1)
ANSWERS: dict[str, Any] = {"stage": "rows", "value": "a value", "start_query": "a query", "register": None}


class PlayedRun(JobRun):
    """A run that answers its script. ``calls``: what was asked of it."""

    epoch, started_at, restored = 3, datetime(2026, 11, 27, tzinfo=UTC), ANY

    def __init__(self) -> None:
        super().__init__(ANY)
        self.calls: list[tuple[Any, ...]] = []
        self.completes = True

    def finish(self) -> None:
        self.calls.append(("finish",))

    def fail(self, error: BaseException | None) -> None:
        self.calls.append(("fail", error))

    def _answer(self, call: str, *arguments: Any) -> Any:
        self.calls.append((call, *arguments))
        return ANSWERS[call]

    def stage(self, uid: str, df: Any, version: str | None, inputs: str) -> Any:
        return self._answer("stage", uid, df, version, inputs)

    def stage_in_parts(self, uid: str, source: Any, parts: Parts, version: str | None, inputs: str) -> Any:
        return self._answer("stage", uid, source, parts, version, inputs)

    def value(self, uid: str, default: Any) -> Any:
        return self._answer("value", uid, default)

    def register(self, uid: str, obj: Any) -> None:
        self._answer("register", uid, obj)

    def txn(self, uid: str) -> Any:
        return self._answer("txn", uid)

    def files(self, uid: str, write: Any, version: str | None, *, local: bool) -> Any:
        return self._answer("files", uid, write, version, local)

    def iterate(self, uid: str, items: Any, every: Any) -> Any:
        return self._answer("iterate", uid, items, every)

    def once(self, uid: str, items: Any) -> Any:
        return self._answer("once", uid, items)

    def frame(self, uid: str, initial: Any) -> Any:
        return self._answer("frame", uid, initial)

    def keyed_state(self, uid: str, key: Any, schema: Any, max_parallelism: int) -> Any:
        return self._answer("keyed_state", uid, key, schema, max_parallelism)

    def sink(self, uid: str, sink: Any, *, gated: bool) -> Any:
        return self._answer("sink", uid, sink, gated)

    def start_query(self, uid: str, writer: Any, after: Sequence[str], adopt: str | None, *, rescale: bool) -> Any:
        return self._answer("start_query", uid, writer, after, adopt, rescale)

    def await_queries(self) -> None:
        self.calls.append(("await_queries",))

    def checkpoint(self, *, wait: bool) -> bool:
        self.calls.append(("checkpoint", wait))
        return self.completes


class PlayedJob(CheckpointedJob):
    """A job whose run is played. ``error``: that with which the run cannot begin."""

    def __init__(self) -> None:
        super().__init__()
        self._session = cast(Any, object())
        self.run, self.error, self.task = PlayedRun(), cast(CheckpointError | None, None), cast(Launched | None, None)

    def _begin(self, task: Launched | None) -> JobRun:
        self.task = task
        if self.error:
            raise self.error
        return self.run


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedJob:
    """Return a job of a script without Airflow."""
    monkeypatch.setattr(job, "launched", lambda _: None)
    monkeypatch.setattr(job, "check_versions", lambda _: None)
    monkeypatch.setattr(CheckpointedJob, "_finished", False)
    monkeypatch.setattr(CheckpointedJob, "_active", None)
    return PlayedJob()


# -- with ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exits", [None, SystemExit(), SystemExit(0)], ids=["its end", "exit()", "exit(0)"])
def test_block_that_ends_well_finishes_its_run(played: PlayedJob, exits: SystemExit | None) -> None:
    played.__enter__()
    played.__exit__(type(exits) if exits else None, exits, None)
    assert played.run.calls == [("finish",)]


@pytest.mark.parametrize("error", [SystemExit(1), SystemExit("no rows"), ValueError("no rows"), KeyboardInterrupt()])
def test_block_that_fails_ends_its_run_with_the_error(played: PlayedJob, error: BaseException) -> None:
    with pytest.raises(type(error)), played:
        raise error
    assert played.run.calls == [("fail", error)]


def test_forked_child_ends_no_run(played: PlayedJob) -> None:
    with played:
        played.run._owner = 0
    assert played.run.calls == []


def test_second_job_is_refused_while_one_is_active(played: PlayedJob) -> None:
    with played, pytest.raises(WrongUse, match="two CheckpointedJobs are active in one driver"), PlayedJob():
        """Nothing: it does not begin."""
    with PlayedJob():
        """The first one has ended."""


def test_cell_of_a_notebook_can_be_run_twice(played: PlayedJob) -> None:
    for _ in range(2):
        with played:
            value: Any = played.value("day")
            assert value == "a value"


@pytest.mark.parametrize("ends_well", [True, False])
def test_driver_of_a_task_has_one_run_that_ends_well(
    played: PlayedJob, ends_well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "launched", lambda _: TASK)
    played.__enter__()
    played.__exit__(*((None, None, None) if ends_well else (ValueError, ValueError(), None)))
    assert played.task is TASK
    if ends_well:
        with pytest.raises(WrongUse, match="the run of this driver has finished already"):
            PlayedJob().__enter__()
    else:
        PlayedJob().__enter__()


def test_run_that_cannot_begin_raises_and_leaves_no_job_active(played: PlayedJob) -> None:
    played.error = InvalidConfig("no such root")
    with pytest.raises(InvalidConfig, match="no such root"):
        played.__enter__()
    with PlayedJob():
        """No other job is active."""


def test_run_of_a_task_that_can_never_begin_is_not_retried(
    played: PlayedJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job, "launched", lambda _: TASK)
    played.error = InvalidConfig("no such root")
    with pytest.raises(SystemExit) as left:
        played.__enter__()
    assert left.value.code == ExitCode.REFUSED
    assert "InvalidConfig: no such root" in capsys.readouterr().err


# -- in the script -------------------------------------------------------------------------------------------------------


def test_calls_of_the_script_are_those_of_its_run(played: PlayedJob) -> None:
    def rows() -> Any:
        """Return nothing: the run is played."""

    with played:
        answers: list[Any] = [played.stage("a", rows, version="2", inputs="keep"), played.value("b", 7)]
        assert answers == ["rows", "a value"]
        played.await_queries()
        played.checkpoint()
        assert (played.attempt, played.started_at.year, played.restored) == (3, 2026, None)
    assert played.run.calls == [
        ("stage", "a", rows, "2", "keep"),
        ("value", "b", 7),
        ("await_queries",),
        ("checkpoint", True),
        ("finish",),
    ]


def test_checkpoint_that_is_not_completed_is_an_error(played: PlayedJob) -> None:
    with played:
        played.run.completes = False
        with pytest.raises(CheckpointFailed, match="the checkpoint is not completed"):
            played.checkpoint()


def test_uid_is_used_once(played: PlayedJob) -> None:
    with played:
        played.value("day")
        with pytest.raises(WrongUse, match="uid 'day' is used twice in this attempt"):
            played.stage("day", lambda: ANY)


CALLS: dict[str, Callable[[CheckpointedJob], object]] = {
    "a stage": lambda one: one.stage("a", lambda: ANY),
    "a value": lambda one: one.value("a"),
    "a checkpoint": lambda one: one.checkpoint(),
    "its queries": lambda one: one.await_queries(),
}
FACTS: dict[str, Callable[[CheckpointedJob], object]] = {
    "its attempt": lambda one: one.attempt,
    "its beginning": lambda one: one.started_at,
    "its restore point": lambda one: one.restored,
}


@pytest.mark.parametrize("name", [*CALLS, *FACTS])
def test_job_is_not_active_before_its_block(played: PlayedJob, name: str) -> None:
    with pytest.raises(WrongUse, match="the job is not active here"):
        (CALLS | FACTS)[name](played)


@pytest.mark.parametrize("name", CALLS)
def test_job_is_not_active_after_its_block(played: PlayedJob, name: str) -> None:
    with played:
        """Nothing."""
    with pytest.raises(WrongUse, match="the job is not active here"):
        CALLS[name](played)


@pytest.mark.parametrize("name", FACTS)
def test_facts_about_the_run_can_be_read_after_its_block(played: PlayedJob, name: str) -> None:
    with played:
        """Nothing."""
    FACTS[name](played)


@pytest.mark.parametrize("name", CALLS)
def test_forked_child_may_not_call_the_job(played: PlayedJob, name: str) -> None:
    with played:
        played.run._owner = 0
        with pytest.raises(WrongUse, match="the job was called in a forked child"):
            CALLS[name](played)
