"""How each event changes the state: new records, kept fields, and records that are no longer listed. Runs anywhere."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, CONDEMNED, Claim
from airflow_checkpoint_provider.protocol.keys import location_path
from airflow_checkpoint_provider.protocol.launch_records import Run
from airflow_checkpoint_provider.protocol.metadata import Versions
from airflow_checkpoint_provider.protocol.query_records import QueryLocation, QueryRecord
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.state import KEPT_TOKENS, State
from airflow_checkpoint_provider.protocol.transitions import apply, fold
from tests.support.histories import History, at, entry, token

ELSEWHERE = "s3://other/savepoint-orders-7-9f3c"
VERSIONS = Versions(package="0.1", spark="4.2.0")
REQUEST = e.Request(token="asked", try_number=2, timeout_s=60.0)

OPENED = e.HistoryOpened(incarnation="i2", job="orders", scope="day-2", item="north", by="flights.delays")
PLANNED = e.LaunchPlanned(
    spec=e.LaunchSpec(
        application="",
        token=token("day-2", generation=3),
        try_number=4,
        owner="flights.delays",
        run="day-2",
        run_after=at(1),
        started_at=at(2),
        restore="chk-1",
    ),
    launch=2,
    restore_point=e.Point(id=1),
)
ADOPTED = e.LaunchAdopted(launch=1, token=token("day-1", generation=5), try_number=6)
STARTED = e.AttemptStarted(
    epoch=2, launch=1, driver="n0nce", restore_point=e.Point(id=1), application_digest="sha256 of the script",
    versions=VERSIONS, checkpointing={"timeout_s": 60.0}, application_parts={"the script": "0a1b2c3d"},
)  # fmt: skip
ENDED = e.AttemptEnded(epoch=1, outcome="failed", exit_code=3, reported_by="task")
BRANCHED = e.BranchOpened(
    branch=4, application="", base=e.Point(pointer=ELSEWHERE), token=token("day-2"), by="ann", reason="wrong rows",
    id_floor=9, claimed=True, rename={"old": "new"},
)  # fmt: skip
TRIGGERED = e.CheckpointTriggered(
    request=e.Request(
        token="r5",
        try_number=2,
        kind="savepoint",
        barrier="stage 'clean'",
        gated=True,
        origin="cli",
        name="before the upgrade",
        pinned=True,
        owner="flights.save",
    ),
    id=5,
    epochs=(1,),
    branch=4,
    plan=("",),
    timeout_s=60.0,
    target=ELSEWHERE,
    queued_at=at(3),
)
COMPLETED = e.CheckpointCompleted(
    id=2, digest="d2", metadata_bytes=9, bytes=7, states=(entry("new", ("state/new/1-a",), 2),)
)  # fmt: skip
PATHS = (location_path("orders", 1, "a"), location_path("orders", 2, "b"))
LOCATED = e.QueryLocated(uid="orders", path=location_path("orders", 3, "c"), taken_from=PATHS[1], begun=8, committed=7)
EXPIRED = e.CheckpointAborted(id=2, reason="expired", phase="acknowledge", missing=("",), details="600 s")


def lived() -> State:
    """Return a state with attempt 1, chk-1 retained, chk-2 pending, a queued request, a claimed savepoint, and a query."""
    history = History()
    history.started()
    history.completed()
    history.triggered(origin="periodic")
    history.do(c.Trigger(request=e.Request(token="waits", origin="cli"), epoch=1))
    query = QueryRecord(uid="orders", locations=tuple(QueryLocation(path=path, branch=0) for path in PATHS))
    return replace(history.state, claims=(Claim(pointer=ELSEWHERE, at=at(0)),), queries=(query,))


def run(name: str, day: int, inside: int | None) -> Run:
    return Run(key=name, owner="o", run_after=at(day), started_at=at(0), started_from=None, launch=1, branch=inside)


def changed(before: State, after: State) -> set[str]:
    """The fields of the state that an event changed."""
    return {f.name for f in fields(State) if getattr(before, f.name) != getattr(after, f.name)}


def at_place(snapshot: Any, place: str) -> Any:
    for step in place.split():
        snapshot = snapshot[int(step) if step.lstrip("-").isdigit() else step]
    return snapshot


# -- fields of a newer version -----------------------------------------------------------------------------------------

MADE: dict[str, tuple[e.Event, str]] = {
    "launch_planned": (PLANNED, "launches -1"),
    "attempt_started": (STARTED, "attempts -1"),
    "branch_opened": (BRANCHED, "branch"),
    "request_queued": (e.RequestQueued(request=REQUEST, epoch=1), "queue -1"),
    "request_dropped": (e.RequestDropped(token="waits", reason="too many"), "dropped_requests -1"),
    "queue_dropped": (e.QueueDropped(reason="its attempt is over"), "dropped_requests -1"),
    "checkpoint_triggered": (TRIGGERED, "checkpoints -1"),
    "query_located": (LOCATED, "queries 0 locations -1"),
}
CHANGED: dict[str, tuple[e.Event, str]] = {
    "history_opened": (OPENED, ""),
    "history_closing": (e.HistoryClosing(reason="finished"), ""),
    "history_closed": (e.HistoryClosed(reason="finished"), ""),
    "launch_adopted": (ADOPTED, "launches 0"),
    "stop_requested": (e.StopRequested(launch=1, by="ann", reason="wrong"), "launches 0"),
    "launch_ended": (e.LaunchEnded(launch=1, outcome="failed", exit_code=1), "launches 0"),
    "attempt_ended": (ENDED, "attempts 0"),
    "checkpoint_completed": (COMPLETED, "checkpoints 1"),
    "commits_confirmed": (e.CommitsConfirmed(id=1), "checkpoints 0"),
    "savepoint_published": (e.SavepointPublished(id=1), "checkpoints 0"),
    "checkpoint_aborted": (EXPIRED, "checkpoints 1"),
    "query_settled": (e.QuerySettled(uid="orders", path=PATHS[1]), "queries 0"),
}
NO_RECORD = {  # these events set a flag or a text and leave no record
    *("checkpoints_condemned", "checkpoints_forgotten", "query_released", "resumed")
}


def of_a_newer_version(state: State) -> State:
    """Return ``state``, suspended, read from a snapshot to which a newer version added a field in every record."""
    data = json.loads(canonical(state.to_json())) | {"suspended": "ann: an upgrade"}
    for record in (data, data["branch"], *data["launches"], *data["attempts"], *data["checkpoints"], *data["queries"]):
        record["earlier"] = "kept"
    return State.from_json(data)


def test_every_kind_of_event_is_in_a_table_of_this_module() -> None:
    assert {*MADE, *CHANGED, *NO_RECORD} == set(e.KINDS)


@pytest.mark.parametrize("kind", [*MADE, *CHANGED])
def test_unknown_fields_of_an_event_stay_in_its_record(kind: str) -> None:
    """This version folds entries of a newer one and writes the next boundary: no field of them may be lost."""
    event, place = (MADE | CHANGED)[kind]
    state = apply(of_a_newer_version(lived()), replace(event, extra={"later": "kept"}))
    record = at_place(json.loads(canonical(state.to_json())), place)
    assert record["later"] == "kept"
    assert kind in MADE or record["earlier"] == "kept"


# -- new records -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "place", "named", "elsewhere"),
    [
        (OPENED, "", {}, {"by"}),
        (PLANNED, "launches -1", {"launch": "number"}, set()),
        (PLANNED, "runs -1", {"restore_point": "started_from"}, {"spec"}),
        (STARTED, "attempts -1", {}, set()),
        (ENDED, "attempts 0 ending", {}, {"epoch"}),
        (BRANCHED, "branch", {"branch": "number"}, {"application", "by", "id_floor", "claimed"}),
        (TRIGGERED, "checkpoints -1", {}, set()),
        (COMPLETED, "checkpoints 1 completion", {}, {"id", "states", "subsumed", "suspended"}),
        (EXPIRED, "checkpoints 1 abort_cause", {}, {"id"}),
        (LOCATED, "queries 0 locations -1", {}, {"uid"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, e.Event) else None,
)  # fmt: skip
def test_fields_of_an_event_are_in_its_record(
    event: e.Event, place: str, named: dict[str, str], elsewhere: set[str]
) -> None:
    """``named`` gives the names that differ; ``elsewhere`` the fields that are kept in other records."""
    record = at_place(apply(lived(), event).to_json(), place)
    written = {name: value for name, value in event.to_json().items() if name not in elsewhere | {"kind"}}
    assert written == {name: record[named.get(name, name)] for name in written}


def test_run_has_the_fields_of_its_launch() -> None:
    record = at_place(apply(lived(), PLANNED).to_json(), "runs -1")
    asked = PLANNED.spec.to_json()
    assert record["key"] == asked["run"]
    assert {name: record[name] for name in ("owner", "run_after", "started_at")} == {
        name: asked[name] for name in ("owner", "run_after", "started_at")
    }
    assert record["generation"] == asked["token"]["generation"]


@pytest.mark.parametrize(
    ("event", "moments"),
    [
        (PLANNED, {"launches -1 at"}),
        (STARTED, {"attempts -1 at"}),
        (ENDED, {"attempts 0 ending at", "runs 0 ending at"}),
        (BRANCHED, {"branch at", "claims 0 at"}),
        (e.RequestQueued(request=REQUEST, epoch=1), {"queue -1 queued_at"}),
        (TRIGGERED, {"checkpoints -1 triggered_at"}),
        (COMPLETED, {"checkpoints 1 completion at"}),
        (EXPIRED, {"checkpoints 1 abort_cause at"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, e.Event) else None,
)
def test_records_have_the_time_of_their_entry(event: e.Event, moments: set[str]) -> None:
    snapshot = fold(lived(), 20, at(20), (event,)).to_json()
    assert snapshot["at"] == at(20)
    assert {place: at_place(snapshot, place) for place in moments} == dict.fromkeys(moments, at(20))


def test_run_has_the_generation_of_its_newest_launch_or_adopter() -> None:
    """The generation tells a clear from a retry."""
    state = apply(lived(), PLANNED)
    assert [run.generation for run in state.runs] == [0, 3]
    assert [run.generation for run in apply(state, ADOPTED).runs] == [5, 3]


def test_latest_try_is_not_lowered_by_a_late_adoption() -> None:
    state = apply(apply(lived(), ADOPTED), replace(ADOPTED, try_number=2))
    assert state.launches[0].latest_try == 6


def test_closed_history_keeps_names_and_counters_only() -> None:
    named = apply(lived(), replace(OPENED, incarnation="i"))
    closed = fold(named, 9, at(9), (e.HistoryClosed(reason="finished"),))
    kept = {"job", "scope", "item", "incarnation", "next_launch", "next_id", "last_epoch", "next_file_set"}
    assert {name: getattr(closed, name) for name in kept} == {name: getattr(named, name) for name in kept}
    assert changed(State(), closed) == kept | {"n", "at", "closing"}


# -- records no longer listed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        replace(ADOPTED, launch=9),
        e.StopRequested(launch=9, by="task", reason="marked failed"),
        replace(ENDED, epoch=9),
        replace(COMPLETED, id=9, subsumed=(2,)),
        replace(EXPIRED, id=9),
        e.CommitsConfirmed(id=9),
        e.SavepointPublished(id=9),
        e.CheckpointsCondemned(ids=(9,), claims=("gone",)),
        e.CheckpointsForgotten(ids=(9,), claims=("gone",)),
        e.RequestDropped(token="gone", reason="too many"),
        e.QueueDropped(reason="its attempt is over"),
        e.Resumed(by="ann", reason="it is over"),
    ],
    ids=lambda event: e.kind_of(type(event)),
)
def test_event_of_an_unlisted_record_changes_nothing(event: e.Event) -> None:
    """A version that keeps longer lists wrote the event, or the record was dropped since."""
    before = lived()
    assert changed(before, apply(before, event)) == set()


@pytest.mark.parametrize(
    ("dropped", "event", "changes"),
    [
        ("launches", STARTED, {"attempts", "last_epoch"}),
        ("runs", ADOPTED, {"launches", "tokens"}),
        ("launches", ENDED, {"attempts"}),
        ("runs", ENDED, {"attempts"}),
        ("attempts", COMPLETED, {"checkpoints", "counts", "file_sets", "next_file_set"}),
        ("launches", COMPLETED, {"checkpoints", "counts", "file_sets", "next_file_set"}),
        ("runs", COMPLETED, {"checkpoints", "counts", "file_sets", "next_file_set"}),
    ],
)
def test_event_is_applied_without_the_record_it_belongs_to(dropped: str, event: e.Event, changes: set[str]) -> None:
    """Launches, attempts and runs are dropped from separate lists."""
    before = replace(lived(), **{dropped: ()})  # type: ignore[arg-type]  # of any of them
    assert changed(before, apply(before, event)) == changes


def test_attempt_of_an_unlisted_launch_belongs_to_the_only_application() -> None:
    assert apply(replace(lived(), launches=()), STARTED).attempts[-1].application == ""


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_settled_checkpoints_are_dropped_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pending, retained and condemned checkpoints are never dropped."""
    monkeypatch.setattr("airflow_checkpoint_provider.protocol.updates.KEPT_RECORDS", 2)
    state = lived()
    for number in range(3, 8):
        state = apply(state, replace(TRIGGERED, id=number, request=replace(TRIGGERED.request, token=f"r{number}")))
    for number in (3, 5, 4, 6):
        state = apply(state, replace(EXPIRED, id=number))
    state = apply(state, e.CheckpointsCondemned(ids=(1,)))
    assert [(checkpoint.id, checkpoint.status) for checkpoint in state.checkpoints] == [
        (1, CONDEMNED), (2, "pending"), (5, ABORTED), (6, ABORTED), (7, "pending"),
    ]  # fmt: skip


def test_dropped_restored_attempts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_checkpoint_provider.protocol.updates.KEPT_RECORDS", 1)
    state = apply(lived(), STARTED)
    assert "restored" not in state.counts, "attempt 1 began with nothing"
    state = apply(apply(state, replace(STARTED, epoch=3)), replace(STARTED, epoch=4))
    assert [attempt.epoch for attempt in state.attempts] == [4]
    assert state.counts["restored"] == 2


@pytest.mark.parametrize("newest_first", [True, False])
def test_tokens_are_dropped_oldest_launch_first(newest_first: bool) -> None:
    """Order: number of the launch, then text of the token; the order of the dict, which a snapshot changes, does not count."""
    tokens = {f"t{10_000 - number}": number for number in range(3, KEPT_TOKENS + 1)} | {"z": 2, "y": 2}
    known = dict(sorted(tokens.items(), key=lambda token_and_launch: token_and_launch[1], reverse=newest_first))
    state = apply(replace(State(), tokens=known), replace(PLANNED, launch=5000))
    assert set(tokens) - set(state.tokens) == {"y"}


def test_latest_run_after_of_dropped_runs_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value for runs inside the branch and one for all: after a restore any dropped run may be inside."""
    monkeypatch.setattr("airflow_checkpoint_provider.protocol.updates.KEPT_RECORDS", 1)
    state = apply(replace(lived(), runs=(run("inside", 1, 0), run("not inside", 3, None))), PLANNED)
    assert (state.evicted_run_after, state.evicted_run_after_anywhere) == (at(1), at(3))
    back = apply(state, replace(BRANCHED, base=e.Point(id=1)))
    assert (back.evicted_run_after, back.evicted_run_after_anywhere) == (at(3), at(3))
    for base in (None, e.Point(pointer=ELSEWHERE)):
        anew = apply(state, replace(BRANCHED, base=base))
        assert (anew.evicted_run_after, anew.evicted_run_after_anywhere) == ("", at(3))
    first = replace(state, evicted_run_after_anywhere="")  # as the first version wrote it
    assert apply(first, replace(BRANCHED, base=None)).evicted_run_after_anywhere == at(1)


# -- branches and their runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "claimed", "owned"),
    [
        (e.Point(pointer="new"), True, [(ELSEWHERE, at(0)), ("new", at(20))]),
        (e.Point(pointer=ELSEWHERE), True, [(ELSEWHERE, at(20))]),
        (e.Point(pointer="new"), False, [(ELSEWHERE, at(0))]),
        (e.Point(id=1), True, [(ELSEWHERE, at(0))]),
        (None, True, [(ELSEWHERE, at(0))]),
    ],
)
def test_claimed_savepoint_is_owned_once(base: e.Point | None, claimed: bool, owned: list[tuple[str, str]]) -> None:
    state = fold(lived(), 20, at(20), (replace(BRANCHED, base=base, claimed=claimed),))
    assert [(claim.pointer, claim.at) for claim in state.claims] == owned


RUNS = {  # name: day, the branch inside which it counts, and whether chk-7 of branch 1, made by "its own", holds it
    "before it": (1, 1, True),
    "before it, moved by a step back": (2, 2, True),
    "its own": (3, 1, True),
    "of the same moment": (3, 1, True),
    "after it": (4, 1, False),
    "of an earlier branch": (1, 0, False),
    "never completed": (1, None, False),
}


@pytest.mark.parametrize("whose", ["known", "unknown", "listed anew"])
def test_runs_inside_the_base_count_in_its_branch(whose: str) -> None:
    """If the run of the base is unknown, every run that may be inside counts. A run that was dropped and launched again counts
    in its own checkpoint."""
    state = fold(
        State(), 0, at(0), (PLANNED, replace(STARTED, launch=2), replace(TRIGGERED, id=7, branch=1, epochs=(2,)))
    )
    runs = {name: run(name, day, inside) for name, (day, inside, _) in RUNS.items()}
    if whose == "listed anew":
        runs["its own"] = run("its own", 3, None)
    launches = (
        ()
        if whose == "unknown"
        else tuple(replace(launch, spec=replace(launch.spec, run="its own")) for launch in state.launches)
    )
    before = replace(state, runs=tuple(runs.values()), launches=launches)
    after = apply(before, replace(BRANCHED, base=e.Point(id=7)))
    counted = {listed.key for listed in after.runs if listed.branch == 4}
    assert counted == {name for name, (_, _, held) in RUNS.items() if held or (whose, name) == ("unknown", "after it")}


def test_clear_that_opens_a_branch_puts_its_run_inside() -> None:
    """A retry in a branch that another task opened has completed nothing there."""
    for by, inside in (("day-2", None), ("day-1", 4)):
        opened = replace(BRANCHED, base=None, claimed=False, token=token(by))
        again = replace(PLANNED, spec=replace(PLANNED.spec, run="day-1", token=token("day-1"), try_number=2))
        state = apply(apply(replace(lived(), runs=(run("day-1", 1, None),)), opened), again)
        assert [listed.branch for listed in state.runs] == [inside]


@pytest.mark.parametrize(("point", "rename"), [(e.Point(pointer=ELSEWHERE), {"old": "new"}), (e.Point(id=1), {})])
def test_run_renames_states_only_at_the_base_of_the_branch(point: e.Point, rename: dict[str, str]) -> None:
    """Checkpoints of the branch itself already have the new names."""
    state = apply(apply(lived(), BRANCHED), replace(PLANNED, restore_point=point))
    assert state.runs[-1].rename == rename


def test_run_has_the_end_of_its_newest_launch() -> None:
    state = apply(lived(), replace(PLANNED, spec=replace(PLANNED.spec, run="day-1")))
    assert apply(state, ENDED).runs[0].outcome is None
    newest = apply(state, replace(STARTED, launch=2))
    assert apply(newest, replace(ENDED, epoch=2)).runs[0].outcome == "failed"


def test_parts_of_the_application_are_kept_for_the_newest_two_attempts() -> None:
    state = lived()
    for epoch in (2, 3, 4):
        state = apply(state, replace(STARTED, epoch=epoch, application_parts={"the script": str(epoch)}))
    kept = {attempt.epoch: attempt.application_parts for attempt in state.attempts}
    assert kept == {1: {}, 2: {}, 3: {"the script": "3"}, 4: {"the script": "4"}}


def test_first_checkpoint_is_set_once_for_attempts_of_its_epochs() -> None:
    """An attempt keeps what it restored until it has a checkpoint of its own (P9)."""
    state = apply(
        apply(lived(), STARTED),
        replace(TRIGGERED, id=5, request=replace(TRIGGERED.request, kind="checkpoint"), epochs=(2,)),
    )
    state = apply(
        replace(state, attempts=tuple(replace(attempt, first_completed=None) for attempt in state.attempts)),
        replace(COMPLETED, id=5),
    )
    assert [attempt.first_completed for attempt in state.attempts] == [None, 5]
    assert [attempt.first_completed for attempt in apply(state, COMPLETED).attempts] == [2, 5], "it is set once"


# -- tokens --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [{"dag": "d2"}, {"run": "r2"}, {"task": "t2"}, {"item": "i2"}, {"generation": 2}])
def test_tokens_differ_if_any_part_differs(part: dict[str, Any]) -> None:
    first = e.Token(dag="d", run="r", task="t", item="i", generation=1)
    other = replace(first, **part)
    assert first.text != other.text
    assert first.launch_text(1) != other.launch_text(1) != other.launch_text(2)
    assert replace(first, item=None).text == "d|r|t||1"


def test_token_of_a_branch_is_kept_unless_its_launch_has_it() -> None:
    """A clear opens the branch and plans the launch in one entry; a restore opens a branch only."""
    branched = apply(lived(), replace(BRANCHED, token=PLANNED.spec.token))
    assert branched.tokens[PLANNED.spec.token.text] == 2
    launched = apply(branched, PLANNED)
    assert launched.tokens[PLANNED.spec.token.launch_text(PLANNED.spec.try_number)] == 2
    assert PLANNED.spec.token.text not in launched.tokens
    assert BRANCHED.token.text in apply(apply(lived(), BRANCHED), PLANNED).tokens
