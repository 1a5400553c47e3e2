"""Stored data that this package never writes: read as damaged, by name, and never by an untyped error. Runs anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_checkpoint_provider.errors import Damaged, FormatTooNew
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.metadata import StateEntry, StateSnapshot
from airflow_checkpoint_provider.protocol.records import Record, canonical, parse
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import fold
from tests.fuzz.mutations import GOLDEN
from tests.fuzz.strategies import records, stored_classes

DEEP = b"[" * 100_000
STARTED = {
    "epoch": 1,
    "launch": 1,
    "driver": "nonce",
    "restore_point": None,
    "application_digest": "",
    "versions": {"package": "", "spark": ""},
}


@pytest.mark.parametrize(
    "body",
    [
        b'{"v":1,"a":1,"a":2}',
        b'{"v":1,"a":{"b":1,"b":1}}',
        b'{"v":1,"a":NaN}',
        b'{"v":1,"a":-Infinity}',
        b'{"v":1,"a":1e400}',
        b'{"v":1,"a":"\\ud800"}',
        b'{"v":1,"\\uDFFF":1}',
        b'{"v":1,"a":' + b"9" * 5000 + b"}",
        b'{"v":true}',
        b'{"v":0}',
        b'{"v":-5}',
        b'{"v":1.0}',
        '{"v":1}'.encode("utf-16"),
        b'{"v":1,"a":' + DEEP,
        b'{"v":1,"a":' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"v":1,"a":' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}",
        DEEP,
    ],
)
def test_json_that_is_never_written_is_damaged(body: bytes) -> None:
    with pytest.raises(Damaged, match=r"^chk-7/_metadata"):
        parse(body, "chk-7/_metadata")


def test_error_quotes_a_part_of_what_it_names() -> None:
    with pytest.raises(Damaged) as damaged:
        File.from_json({"name": "part-0.parquet", "bytes": "9" * 1_000_000, "rows": 1})
    assert len(str(damaged.value)) < 1000
    with pytest.raises(FormatTooNew) as newer:
        e.event_from_json({"kind": "x" * 1_000_000})
    assert len(str(newer.value)) < 1000


def test_text_that_looks_like_half_a_character_is_read() -> None:
    body = canonical({"v": 1, "a": "\\ud800"})
    assert canonical(parse(body, "x")) == body


LOCATED = {"uid": "a", "path": "query/a/1-a", "taken_from": None, "begun": -1, "committed": -1}


def file_set_of(name: str) -> dict[str, Any]:
    """Return the JSON of a file set with one file."""
    return {"path": "state/a/1-a", "files": [{"name": name, "bytes": 1, "rows": 1, "checksum": None}]}


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (File, {"name": "part-0.parquet", "bytes": 1, "rows": 1}, {"bytes": -1}),
        (File, {"name": "part-0.parquet", "bytes": 1, "rows": 1}, {"bytes": True}),
        (File, {"name": "part-0.parquet", "bytes": 1, "rows": 1}, {"rows": 1.0}),
        *(
            (File, {"name": "a/b.parquet", "bytes": 1, "rows": 1}, {"name": name})
            for name in ("", "/etc/passwd", "../x", "a/../x", "a//x", ".aws", "a/.x", "a\nb")
        ),
        *(
            (FileSet, {"path": "state/clean/1-abc"}, {"path": path})
            for path in ("", "journal", "state", "state/../1-a", "state/a/b/1-a", "/state/a/1-a", "state/.a/1-a")
        ),
        *(
            (FileSet, {"path": "state/clean/1-abc"}, {"path": path})
            for path in ("state/a/0-a", "state/a/1-a/..", f"state/a/{'9' * 19}-a")
        ),
        (FileSet, {"path": "state/clean/1-abc"}, {"files": ""}),
        (FileSet, {"path": "state/clean/1-abc"}, {"files": {}}),
        *(
            (
                StateSnapshot,
                {"uid": "a", "kind": "stage", "run": "r", "file_sets": [file_set_of("a")]},
                {"file_sets": bad},
            )
            for bad in ([], [file_set_of("_SUCCESS")], [file_set_of("a/_b")])
        ),
        *(
            (read, {"uid": "a", "kind": "value", "run": "r"}, {"uid": uid})
            for read in (StateSnapshot, StateEntry)
            for uid in ("", " ", "a\nb", "a" * 201)
        ),
        *((e.QueryLocated, LOCATED, {"path": path}) for path in ("state/a/1-a", "query/a/1-a/..", "query/.a/1-a")),
        (e.QueryLocated, LOCATED, {"path": f"query/a/{'9' * 4301}-a"}),  # more digits than Python makes a number of
        (e.QueryLocated, LOCATED, {"begun": -2}),
        (e.QueryLocated, LOCATED, {"begun": 10**18}),
        (e.Point, {"id": 1}, {"id": 0}),
        (e.Point, {"id": 1}, {"id": True}),
        (e.Request, {"token": "a"}, {"timeout_s": "10"}),
        (e.Request, {"token": "a"}, {"timeout_s": -1.0}),
        (e.Request, {"token": "a"}, {"timeout_s": True}),
        (e.HistoryOpened, {"incarnation": "i", "job": "flights.delays", "scope": ""}, {"job": "../x"}),
        (e.HistoryOpened, {"incarnation": "i", "job": "flights.delays", "scope": ""}, {"job": "a; rm -r /"}),
        (e.QueueDropped, {"reason": "x"}, {"reason": None}),
        (e.LaunchEnded, {"launch": 1, "outcome": "lost", "exit_code": None}, {"outcome": "vanished"}),
        (State, {"job": ""}, {"job": "a; rm -r /"}),
    ],
)
def test_value_that_is_never_written_is_damaged(read: type[Record], good: dict[str, Any], bad: dict[str, Any]) -> None:
    assert read.from_json(good).to_json() | good == read.from_json(good).to_json()
    with pytest.raises(Damaged, match=rf"^a stored {read.__name__} cannot be read: .* is not "):
        read.from_json(good | bad)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", 0),
        ("plan", []),
        ("epochs", [0]),
        ("epochs", []),
        ("triggered_at", "soon"),
        ("triggered_at", "2026-11-22T10:00:00"),
    ],
)
def test_checkpoint_in_a_snapshot_with_such_a_value_is_damaged(field: str, value: Any) -> None:
    data = json.loads((GOLDEN / "entry-boundary.json").read_bytes())["snapshot"]["checkpoints"][0]
    Checkpoint.from_json(data)
    with pytest.raises(Damaged, match="is no"):
        Checkpoint.from_json(data | {field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "done"),
        ("status", "pending"),
        ("at", ""),
        ("at", "yesterday"),
        ("at", "0001-01-01T00:00:00+23:59"),
        ("at", "9999-12-31T23:59:59-23:59"),
        ("n", 0),
    ],
)
def test_completion_with_such_a_value_is_damaged(field: str, value: Any) -> None:
    """No policy could tell the age of a checkpoint without a time."""
    data = json.loads((GOLDEN / "entry-boundary.json").read_bytes())["snapshot"]["checkpoints"][0]
    with pytest.raises(Damaged, match="is no"):
        Checkpoint.from_json(data | {"completion": data["completion"] | {field: value}})


def test_checkpoint_that_is_completed_and_aborted_is_damaged() -> None:
    completed, _, aborted = json.loads((GOLDEN / "entry-boundary.json").read_bytes())["snapshot"]["checkpoints"][:3]
    assert Checkpoint.from_json(aborted).abort_cause
    with pytest.raises(Damaged, match="is completed and aborted"):
        Checkpoint.from_json(aborted | {"completion": completed["completion"]})


def test_snapshot_that_does_not_list_a_file_set_of_its_checkpoints_is_damaged() -> None:
    """The file set would count as left over, and be deleted."""
    data = json.loads((GOLDEN / "entry-boundary.json").read_bytes())["snapshot"]
    with pytest.raises(Damaged, match=r"file set \d+ of a checkpoint is not listed"):
        State.from_json(data | {"file_sets": []})


@pytest.mark.parametrize("records", ["launches", "attempts", "runs"])
def test_snapshot_with_more_records_than_any_version_keeps_is_damaged(records: str) -> None:
    data = json.loads((GOLDEN / "entry-boundary.json").read_bytes())["snapshot"]
    assert State.from_json(data | {records: data[records] * 20})
    with pytest.raises(Damaged, match="records of one kind are more than any version keeps"):
        State.from_json(data | {records: data[records] * 1001})


def test_state_of_an_unknown_kind_is_of_a_newer_version() -> None:
    with pytest.raises(
        FormatTooNew, match="a stored state is of kind 'model', which this version does not know: upgrade"
    ):
        StateSnapshot.from_json({"uid": "als", "kind": "model", "run": "r"})


def test_checkpoint_of_an_unknown_kind_is_of_a_newer_version() -> None:
    with pytest.raises(FormatTooNew, match=r"'incremental'.*upgrade"):
        e.Request.from_json({"token": "a", "kind": "incremental"})


def checkpointing(retention: Any) -> dict[str, Any]:
    return {"timeout_s": 600.0, "retention": retention}


@pytest.mark.parametrize(
    "retention",
    [{"keep": "weekly"}, {"keep": "either", "of": [{"keep": "all"}, {"keep": "both", "of": [{"keep": "weekly"}]}]}],
)
def test_retention_policy_of_an_unknown_kind_is_of_a_newer_version(retention: Any) -> None:
    with pytest.raises(FormatTooNew, match=r"'weekly'.*upgrade"):
        e.AttemptStarted.from_json(STARTED | {"checkpointing": checkpointing(retention)})


@pytest.mark.parametrize(
    "retention",
    [None, "all", {}, {"keep": 7}, {"keep": "latest"}, {"keep": "latest", "count": 0}, {"keep": "both", "of": []}]
    + [{"keep": "within", "seconds": seconds} for seconds in (1e300, "x", -1, None, True)],
)
def test_retention_policy_that_is_none_is_damaged(retention: Any) -> None:
    with pytest.raises(Damaged, match="is not a valid configuration of checkpoints"):
        e.AttemptStarted.from_json(STARTED | {"checkpointing": checkpointing(retention)})


# -- what is written can be read, and what is read can be written --------------------------------------------------------


@pytest.mark.parametrize("record", sorted(stored_classes(Record), key=str))
@settings(max_examples=25)
@given(data=st.data())
def test_every_record_that_is_written_can_be_read_and_written_again(record: Any, data: st.DataObject) -> None:
    written = data.draw(records(record))
    body = canonical({"v": 1, **written.to_json()})
    assert canonical(record.from_json(parse(body, "a record")).to_json()) == body


EVENTS: list[Any] = list(e.KINDS.values())
STATES = [
    State(),
    *(
        State.from_json(json.loads((GOLDEN / f"{name}.json").read_bytes())["snapshot"])
        for name in ("entry-boundary", "entry-boundary-savepoints", "entry-boundary-application")
    ),
]


@settings(max_examples=200)
@given(st.sampled_from(STATES), st.lists(st.one_of([records(event) for event in EVENTS]), max_size=4))
def test_events_of_the_right_types_can_be_applied_to_any_state(state: State, events: list[e.Event]) -> None:
    """They cannot have happened, perhaps. A reader takes them as they are, because only a decision refuses."""
    after = fold(state, state.n + 1, "2026-11-22T10:00:00.000Z", tuple(events))
    assert State.from_json(json.loads(canonical(after.to_json()))) == after
