"""Which location a query runs in, and who may say so. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.commands import DoneAlready
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import location_path
from airflow_checkpoint_provider.protocol.query_records import QueryRecord, Released
from airflow_checkpoint_provider.protocol.state import State
from tests.support.histories import History, launch, refusal, start

UID = "orders"
ELSEWHERE = "file:///elsewhere/orders"


def at(epoch: int, nonce: str = "abc") -> str:
    return location_path(UID, epoch, nonce)


def locate(epoch: int, taken_from: str | None = None, *, nonce: str = "abc", begun: int = -1) -> c.LocateQuery:
    return c.LocateQuery(
        uid=UID, path=at(epoch, nonce), taken_from=taken_from, begun=begun, committed=begun, epoch=epoch
    )


def located(epochs: int) -> History:
    """Return a history in which so many attempts have taken the query over, each from the one before."""
    history = History()
    for epoch in range(1, epochs + 1):
        history.do(launch(try_number=epoch))
        history.do(start(try_number=epoch))
        history.do(locate(epoch, at(epoch - 1) if epoch > 1 else None, begun=epoch))
    return history


def paths(state: State) -> list[str]:
    query = state.query(UID)
    return [location.path for location in query.locations] if query else []


def test_query_goes_on_in_the_location_of_the_newest_attempt() -> None:
    state = located(3).state
    assert paths(state) == [at(1), at(2), at(3)]
    query = state.query(UID)
    assert query
    assert (query.newest.taken_from, query.newest.begun) == (at(2), 3)


def test_second_taker_of_one_location_is_refused() -> None:
    history = located(2)
    assert isinstance(history.ask(locate(2, at(2), nonce="other")), tuple)
    refusal(history.ask(locate(2, at(1), nonce="other")), errors.QueryMoved)
    refusal(history.ask(locate(2, None, nonce="other")), errors.QueryMoved)


def test_attempt_that_is_over_takes_nothing() -> None:
    history = located(2)
    refusal(history.ask(locate(1, at(2), nonce="late")), errors.Fenced)
    refusal(history.ask(c.SettleQuery(uid=UID, path=at(2), epoch=1)), errors.Fenced)


def test_lost_answer_is_asked_again() -> None:
    history = located(2)
    assert history.ask(locate(2, at(1))) == DoneAlready(2)
    history.do(c.SettleQuery(uid=UID, path=at(2), epoch=2))
    assert history.ask(c.SettleQuery(uid=UID, path=at(2), epoch=2)) == DoneAlready(2)


def test_settled_location_needs_no_older_one() -> None:
    history = located(3)
    assert history.state.locations() == {at(1), at(2), at(3)}
    refusal(history.ask(c.SettleQuery(uid=UID, path=at(2), epoch=3)), errors.QueryMoved)
    history.do(c.SettleQuery(uid=UID, path=at(3), epoch=3))
    assert history.state.locations() == {at(3)}


def release(path: str | None) -> c.ReleaseQuery:
    return c.ReleaseQuery(uid=UID, path=path, to=ELSEWHERE, begun=2, committed=1)


def test_released_query_is_no_query_of_the_job_until_it_is_adopted_again() -> None:
    history = located(2)
    refusal(history.ask(release(at(2))), errors.JobAlreadyRunning)
    history.do(c.EndAttempt(epoch=2, outcome="failed", exit_code=1))
    refusal(history.ask(release(at(1))), errors.QueryMoved)
    query = history.state.query(UID)
    assert query
    history.do(release(at(2)))
    released = Released(uid=UID, to=ELSEWHERE, begun=2, committed=1, locations=query.locations)
    assert (history.state.queries, history.state.released) == ((), (released,))
    assert State.from_json(history.state.to_json()) == history.state
    assert history.ask(release(None)) == DoneAlready(2)
    refusal(history.ask(c.SettleQuery(uid=UID, path=at(2), epoch=2)), errors.Fenced)
    history.do(launch(try_number=3))
    history.do(start(try_number=3))
    history.do(locate(3))
    assert (paths(history.state), history.state.released) == ([at(3)], ())


def test_query_that_was_never_located_is_released() -> None:
    history = History()
    history.started()
    history.do(c.EndAttempt(epoch=1, outcome="failed", exit_code=1))
    history.do(release(None))
    assert history.state.released
    refusal(history.ask(replace(release(None), to="file:///another")), errors.QueryMoved)


def test_released_query_is_known_by_its_old_name_too() -> None:
    history = located(1)
    history.do(c.EndAttempt(epoch=1, outcome="failed", exit_code=1))
    history.do(release(at(1)))
    rename = c.Restore(token=Token(dag="d", run="r", task="t"), base=None, by="ann", reason="", rename={UID: "sales"})
    history.do(rename)
    assert history.state.released_query("sales")
    assert history.state.released_query(UID) == history.state.released_query("sales")


@pytest.mark.parametrize(
    "names", [{"orders": "sales"}, {"orders": "bills", "bills": "orders"}, {"orders": "bills", "bills": "old bills"}]
)
def test_queries_are_renamed_once_if_the_same_base_is_restored_again(names: dict[str, str]) -> None:
    """The version with the new names did not start, and a person restores once more: ``--from latest`` is the same base with its names."""
    history = located(1)
    history.do(replace(locate(1), uid="bills", path=location_path("bills", 1, "abc")))
    where = {query.uid: query.newest.path for query in history.state.queries}
    for attempt in ("first", "second", "third"):
        token = Token(dag="d", run=attempt, task="t")
        history.do(c.Restore(token=token, base=None, by="ann", reason="", rename=names))
        assert {query.uid: query.newest.path for query in history.state.queries} == {
            names.get(uid, uid): path for uid, path in where.items()
        }


def test_query_that_was_renamed_is_renamed_again_by_its_stored_name() -> None:
    history = located(1)
    for attempt, names in (("first", {UID: "sales"}), ("second", {UID: "revenue"})):
        history.do(c.Restore(token=Token(dag="d", run=attempt, task="t"), base=None, by="ann", reason="", rename=names))
    assert [query.uid for query in history.state.queries] == ["revenue"]


def test_snapshot_of_the_state_holds_the_queries() -> None:
    state = located(2).state
    assert State.from_json(state.to_json()) == state


def test_query_without_a_location_is_damaged() -> None:
    with pytest.raises(errors.Damaged, match="query 'orders' without a location"):
        QueryRecord.from_json({"uid": UID, "locations": []})
