"""A query that begins while another one of the job is not started: refused at its table, and logged where nobody can compare. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.assignment import AllowanceOption, check_allowance
from airflow_checkpoint_provider.errors import NonRestoredState
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_records import QueryLocation, QueryRecord, Released
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.queries.sources.new_name import refuse_new_name
from tests.unit.spark.queries.stored_queries import saved

REFUSED = r"'orders_v2' would start from its beginning and write to {}, where query 'orders' of this job"
MAYBE = "query 'orders_v2' starts from its beginning and writes to {}, as query 'orders' of this job did"


def sink(kind: str, path: str | None = None) -> Any:
    return SimpleNamespace(path=path, target=SimpleNamespace(format=kind))


def wrote(kind: str | None, path: str | None = None) -> State:
    """Return the state of a job whose query 'orders' has written there."""
    location = QueryLocation(path="query/orders/1-abc", branch=0, sink=path, format=kind)
    return replace(State(), job="job", queries=(QueryRecord(uid="orders", locations=(location,)),))


def begin(its: Any, state: State, allowed: AllowanceOption = False, uid: str = "orders_v2", **found: Any) -> None:
    started, restored = found.get("started", {}), found.get("restored", {})
    refuse_new_name(uid, its, started, state, restored, check_allowance(allowed))


TABLES = pytest.mark.parametrize(("kind", "path"), [("delta", "file:/t"), ("iceberg", "lake.db.t")])


@TABLES
def test_new_name_on_the_table_of_a_query_that_is_not_started_is_refused(kind: str, path: str) -> None:
    says = REFUSED.format(path) + '.*--rename orders=orders_v2`.*start \'orders\' before.*{"orders": "keep"}'
    with pytest.raises(NonRestoredState, match=says):
        begin(sink(kind, path), wrote(kind, path))


def test_new_name_in_a_fork_is_refused_on_the_table_of_the_original() -> None:
    """The journal of the fork knows no query, only its checkpoint does."""
    restored = {"orders": stored("delta", "file:/t")}
    with pytest.raises(NonRestoredState, match=REFUSED.format("file:/t") + " has written by the checkpoint"):
        begin(sink("delta", "file:/t"), State(), restored=restored)
    begin(sink("delta", "file:/fork"), State(), restored=restored)
    begin(sink("delta", "file:/t"), State(), uid="orders", restored=restored)


def stored(kind: str, path: str) -> StateSnapshot:
    snapshot = saved("orders")
    assert snapshot.query
    return replace(snapshot, query=replace(snapshot.query, sink=kind, path=path))


def test_new_name_of_a_released_query_is_refused_on_its_table() -> None:
    newest = QueryLocation(path="query/orders/1-abc", branch=0, sink="file:/t", format="delta")
    released = Released(uid="orders", to="file:///plain", begun=3, committed=3, locations=(newest,))
    with pytest.raises(NonRestoredState, match=r"before it was released to file:///plain.*Take 'orders' over again"):
        begin(sink("delta", "file:/t"), replace(State(), job="job", released=(released,)))


@TABLES
def test_queries_share_a_table_if_nothing_is_left_open(
    kind: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other query is started, the job says what becomes of it, it has another table, or the new one has begun before."""
    at, state = sink(kind, path), wrote(kind, path)
    begin(at, state, started={"orders": at})
    for allowed in ({"orders": "keep"}, ["orders"], True, "keep"):
        begin(at, state, allowed)
    begin(sink(kind, path + "2"), state)
    begin(sink(kind, path + "2"), wrote("kafka"))
    (known,) = state.queries
    begin(at, replace(state, queries=(known, replace(known, uid="orders_v2"))))
    begin(at, State(), restored={"orders_v2": saved("orders_v2")})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", ["kafka", "foreachbatch", "foreach"])
def test_new_name_that_cannot_be_compared_is_logged_at_once(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The script may start the old query later."""
    begin(sink(kind), wrote(kind))
    line = capsys.readouterr().out
    assert line.startswith(MAYBE.format(kind))
    assert "--from latest --rename orders=NEW" in line
    assert line.endswith("[CKP429]\n")
    begin(sink(kind), wrote(kind), {"orders": "keep"})
    begin(sink(kind), wrote(kind), started={"orders": sink(kind)})
    begin(sink(kind), wrote("delta", "file:/t"))
    begin(sink("noop"), wrote("noop"))
    assert capsys.readouterr().out == ""


def test_query_whose_format_was_not_noted_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    begin(sink("kafka"), wrote(None))
    begin(sink("kafka"), State(), restored={"orders": stored("kafka", "")})
    assert capsys.readouterr().out.count("[CKP429]") == 2
