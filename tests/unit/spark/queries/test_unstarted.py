"""Which queries of the checkpoint a checkpoint waits for, because the script may start them next. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.errors import Declined, SinkMoved
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import Edge
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.queries import unstarted
from airflow_checkpoint_provider.spark.queries.location.restored_links import Links, restored_links
from airflow_checkpoint_provider.spark.queries.queries import Queries
from airflow_checkpoint_provider.spark.queries.query import Query
from airflow_checkpoint_provider.spark.queries.sources.sources import Source
from airflow_checkpoint_provider.spark.queries.unstarted import PATIENCE, Unstarted
from airflow_checkpoint_provider.spark.state.states import States
from tests.unit.spark.queries.stored_queries import saved

CHAIN = {uid: saved(uid, *upstreams) for uid, upstreams in {"a": "", "b": "a", "c": "b", "z": ""}.items()}


class Time:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    monkeypatch.setattr(unstarted, "time", found := Time())
    return found


def test_query_that_reads_a_running_one_is_expected(time: Time) -> None:
    found = Unstarted()
    assert found.expected((), CHAIN) == {}
    with found.starting():
        assert found.expected(("a",), CHAIN) == {"b": "a"}
    assert found.expected(("a", "b"), CHAIN) == {"c": "b"}
    assert found.expected(("a", "b", "c"), CHAIN) == {}


def test_query_that_is_not_started_soon_is_expected_no_longer(time: Time, capsys: pytest.CaptureFixture[str]) -> None:
    found = Unstarted()
    with found.starting():
        time.now += 10 * PATIENCE  # a batch that had begun
        assert found.expected(("a",), CHAIN)
    time.now += PATIENCE - 1
    assert found.expected(("a",), CHAIN)
    assert capsys.readouterr().out == ""
    time.now += 1
    assert not found.expected(("a",), CHAIN)
    with found.starting():
        assert not found.expected(("a",), CHAIN)
        assert found.expected(("a", "b"), CHAIN) == {"c": "b"}
    assert capsys.readouterr().out == (
        "query 'b' of the checkpoint is not started, and 'a' runs, whose rows it reads. Checkpoints no longer wait for 'b', and hold it"
        " as it was  [CKP147]\n"
    )


@pytest.mark.parametrize("wait", [Queries.wait, lambda queries: query(queries).awaitTermination(0.0)])
def test_requests_are_served_once_the_script_waits(wait: Callable[[Queries], object], time: Time) -> None:
    """Another version of the script has dropped a query, and waits for the other one."""
    attempt: Any = SimpleNamespace(journal=SimpleNamespace(state=State()))
    states = States("run", {"a": saved("a"), "b": saved("b", "a")})
    queries = Queries(cast(Any, None), attempt, states, CheckpointConfig())
    queries._running = {"a": played()}
    assert queries.others_wait()
    wait(queries)
    assert not queries.others_wait()


def query(queries: Queries) -> Query:
    return Query(queries._running["a"], queries.waiting)


def played() -> Any:
    """Return a query that has ended."""
    return SimpleNamespace(caught_up=True, handled=threading.Event(), runs=lambda: False, failed=lambda: None)


# -- what a checkpoint holds that does not wait ----------------------------------------------------------------------------


def running(uid: str, path: str) -> Any:
    return {uid: SimpleNamespace(sink=SimpleNamespace(path=path))}


def nothing() -> None:
    """Say that the checkpoint is still wanted."""


class Target:
    """The target of a savepoint."""

    def copy(self, record: StateSnapshot, check: Callable[[], object]) -> StateSnapshot:
        return record


def test_checkpoint_between_two_starts_says_that_the_queries_stand_apart(time: Time) -> None:
    (snapshot,) = Unstarted().snapshots(running("a", "/a"), CHAIN).values()
    (edge,) = edges(snapshot.write(nothing))
    assert (edge.upstream, edge.apart) == ("a", True)


def edges(record: StateSnapshot) -> tuple[Edge, ...]:
    assert record.query
    return record.query.edges


def test_savepoint_between_two_starts_is_declined(time: Time) -> None:
    found = Unstarted()
    (snapshot,) = found.snapshots(running("a", "/a"), CHAIN).values()
    with pytest.raises(Declined, match="query 'b' is not started yet, and 'a' has gone on, whose rows it reads"):
        snapshot.write(nothing, Target())
    found.script_waits()
    (snapshot,) = found.snapshots(running("a", "/a"), CHAIN).values()
    assert edges(snapshot.write(nothing, Target()))[0].apart


def test_query_of_a_fork_that_is_not_started_yet_does_not_stand_apart(time: Time) -> None:
    """All that it has yet to read is in the sink of the fork's own query."""
    (snapshot,) = Unstarted().snapshots(running("a", "/fork"), CHAIN).values()
    assert not edges(snapshot.write(nothing))[0].apart


@pytest.mark.parametrize("path", ["/fork", "/a"])
def test_query_that_stands_apart_starts_in_place_alone(path: str) -> None:
    (snapshot,) = Unstarted().snapshots(running("a", "/a"), CHAIN).values()
    sinks: Any = {"a": SimpleNamespace()}
    states = {**CHAIN, "b": snapshot.write(nothing)}

    def start() -> Links:
        nobody: Any = None
        return restored_links(nobody, nobody, "b", states, {"a": [Source(0, 0, path)]}, sinks)

    if path == "/a":
        assert start().moves == ()
    else:
        with pytest.raises(SinkMoved, match="'a' ran and 'b' was not started, so rows that it has yet to read"):
            start()
