"""The queries of an attempt at the savepoint of a stop, and when a checkpoint waits for others. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.errors import Declined, WrongUse
from airflow_checkpoint_provider.protocol.commands import LocateQuery
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.spark.checkpoints.copies import TooLate
from airflow_checkpoint_provider.spark.queries.queries import Queries
from airflow_checkpoint_provider.spark.state.snapshot import Check
from tests.unit.spark.driver import Driver


class Played:
    """A running query. ``calls``: what was asked of the queries, and what the driver's activity was then."""

    upstreams: Mapping[str, object] = {}

    def __init__(self, uid: str, running: Driver, calls: list[str]) -> None:
        self.uid, self._running, self._calls = uid, running, calls
        self.caught_up, self.handled, self.error = True, threading.Event(), cast(Exception | None, None)

    def runs(self) -> bool:
        return not self.error

    def failed(self) -> Exception | None:
        return self.error

    def drain(self, check: Check) -> None:
        self._calls.append(str(self._running.attempt.activity))
        check()

    def pause(self) -> None:
        self._calls.append(f"pause {self.uid}")

    def resume(self) -> None:
        self._calls.append(f"resume {self.uid}")


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def queries(running: Driver, calls: list[str]) -> Queries:
    """Return the queries of a script that has started 'clean', then 'totals'."""
    queries = Queries(cast(Any, None), running.attempt, running.states, CheckpointConfig())
    queries._running = cast(Any, {uid: Played(uid, running, calls) for uid in ("clean", "totals")})
    return queries


def lists(running: Driver, uid: str) -> None:
    """Let the job have a query of that name."""
    path = f"query/{uid}/1-abc"
    running.attempt.writer.append(LocateQuery(uid=uid, epoch=1, path=path, taken_from=None, begun=-1, committed=-1))


def in_time() -> None:
    """Find that the checkpoint is wanted."""


def late() -> None:
    raise TooLate


def test_query_needs_a_history_that_all_runs_share(running: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.attempt.journal, "state", replace(running.attempt.journal.state, scope="run"))
    queries = Queries(cast(Any, None), running.attempt, running.states, CheckpointConfig())
    with pytest.raises(WrongUse, match="query 'rows' needs a history that all runs share"):
        queries.start("rows", cast(Any, None))


def test_script_that_waits_gets_the_error_of_a_query_while_another_one_runs(queries: Queries) -> None:
    failed: Any = queries._running["totals"]
    failed.error = ValueError("no more disk")
    with pytest.raises(ValueError, match="no more disk"):
        queries.wait()


def test_queries_stop_before_their_upstreams(queries: Queries, calls: list[str]) -> None:
    queries.rest(in_time, drain=False)
    queries.resume()
    assert calls == ["pause totals", "pause clean", "resume clean", "resume totals"]


def test_queries_are_drained_after_their_upstreams_and_stop_then(
    queries: Queries, running: Driver, calls: list[str]
) -> None:
    queries.rest(in_time, drain=True)
    drained = ["draining query 'clean'", "draining query 'totals'"]
    assert calls == [*drained, "pause totals", "pause clean"]
    assert running.attempt.activity.draining is None


def test_query_that_is_not_drained_in_time_is_named(queries: Queries, running: Driver, calls: list[str]) -> None:
    with pytest.raises(TooLate, match="query 'clean' was not drained"):
        queries.rest(late, drain=True)
    assert calls == ["draining query 'clean'"], "no query stops"
    assert running.attempt.activity.draining is None


def test_queries_are_not_drained_while_the_script_may_start_another(
    queries: Queries, running: Driver, calls: list[str]
) -> None:
    lists(running, "named")
    with queries._unstarted.starting():
        """The start of the newest one."""
    with pytest.raises(Declined, match="not started yet, so not drained: 'named'"):
        queries.rest(in_time, drain=True)
    assert calls == []


def test_checkpoint_does_not_wait_for_a_query_that_reads_of_none(queries: Queries, running: Driver) -> None:
    lists(running, "named")
    with queries._unstarted.starting():
        assert not queries.others_wait()


def test_checkpoint_waits_for_all_queries_while_one_catches_up(queries: Queries, running: Driver) -> None:
    lists(running, "named")
    played: Any = queries._running["totals"]
    played.caught_up = False
    with queries._unstarted.starting():
        assert queries.others_wait()
        played.handled.set()
        assert not queries.others_wait(), "it has failed"
