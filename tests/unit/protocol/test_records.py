"""Stored JSON: canonical, damaged, newer than this version, and with fields this version does not know. Runs anywhere."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.errors import Damaged, FormatTooNew
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal, StateEntry, StateSnapshot, Versions
from airflow_checkpoint_provider.protocol.records import VERSION, Record, added, canonical, checked, parse
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import acknowledgement, driver, stage, take, value
from tests.support.histories import at
from tests.support.journals import KEYS, SHORT, open_journal, raw, rewrite, write, written
from tests.support.parquet import flipped

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(json_values)
def test_canonical_json_is_one_sequence_of_bytes(data: Any) -> None:
    body = canonical(data)
    assert json.loads(body) == data
    assert canonical(json.loads(body)) == body


def test_canonical_json_is_sorted_tight_and_utf8() -> None:
    assert canonical({"b": [1, 2.5, None], "a": "Größe"}) == '{"a":"Größe","b":[1,2.5,null]}'.encode()


def test_canonical_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical({"a": float("nan")})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"v":1',
        b"\xff\xfe{}",
        b"null",
        b"7",
        b"[1]",
        b'"v"',
        b"{}",
        b'{"v":"1"}',
        b'{"v":null}',
        b'{"v":1.5}',
    ],
)
def test_body_without_a_version_is_damaged(body: bytes) -> None:
    with pytest.raises(Damaged, match=r"^chk-7/_metadata"):
        parse(body, "chk-7/_metadata")


@given(st.dictionaries(st.text(), json_values))
def test_checked_object_is_read_back(data: dict[str, Any]) -> None:
    data = {name: value for name, value in data.items() if name != "crc"} | {"v": VERSION}
    assert parse(checked(data), "entry 7") == data
    assert json.loads(checked(data)).keys() - data.keys() == {"crc"}


def test_every_flipped_bit_of_a_checked_object_is_damage() -> None:
    """A bit may be in the name of the checksum only; all else is then as it was written."""
    data = {"v": VERSION, "n": 7, "at": "2026-11-20", "events": [{"kind": "größer", "share": 0.5, "none": None}]}
    body = checked(data)
    for place, bit in itertools.product(range(len(body)), range(8)):
        with suppress(Damaged):
            read = parse(flipped(body, place, bit), "entry 7")
            assert {name: value for name, value in read.items() if value != json.loads(body)["crc"]} == data


def test_changed_object_is_named() -> None:
    with pytest.raises(Damaged, match=r"^chk-7/_metadata does not match its checksum; .*Bring it back from a backup"):
        parse(checked({"v": 1, "n": 7}).replace(b'"n":7', b'"n":8'), "chk-7/_metadata")


def test_newer_format_is_refused_by_name() -> None:
    """An unknown format is never skipped."""
    with pytest.raises(
        FormatTooNew, match=rf"^chk-7/_metadata has format {VERSION + 1}.*upgrade airflow-checkpoint-provider"
    ):
        parse(canonical({"v": VERSION + 1}), "chk-7/_metadata")
    for read in (Acknowledgement.from_bytes, Seal.from_bytes, lambda body: Entry.from_bytes(body, "entry 7")):
        with pytest.raises(FormatTooNew):
            read(canonical({"v": VERSION + 1}))


def test_event_of_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(FormatTooNew, match="'commits_undone'"):
        e.event_from_json({"kind": "commits_undone", "id": 7})
    with pytest.raises(FormatTooNew, match="None"):
        e.event_from_json({"id": 7})


@pytest.mark.parametrize("kind", sorted(e.KINDS))
def test_kind_of_an_event_class_is_its_name(kind: str) -> None:
    assert kind == kind.lower()
    assert e.kind_of(e.KINDS[kind]) == kind


def test_kinds_of_this_version() -> None:
    """The list may grow; without a kind that was written, stored entries could not be read."""
    assert set(e.KINDS) == {
        *("history_opened", "launch_planned", "launch_adopted", "stop_requested", "attempt_started", "attempt_ended"),
        *("branch_opened", "checkpoint_triggered", "checkpoint_completed", "checkpoint_aborted"),
        *("checkpoints_condemned", "checkpoints_forgotten", "resumed"),
        *("request_queued", "request_dropped", "queue_dropped", "savepoint_published", "commits_confirmed"),
        *("history_closing", "history_closed", "launch_ended"),
        *("query_located", "query_settled", "query_released"),
    }


# -- records -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Inner(Record):
    name: str
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class Outer(Record):
    inner: Inner
    perhaps: Inner | None = None
    several: tuple[Inner, ...] = ()
    named: dict[str, Inner] = field(default_factory=dict)
    numbers: dict[str, int | None] = field(default_factory=dict)
    anything: Any = None


OUTER = {
    "inner": {"name": "a", "size": 1},
    "perhaps": None,
    "several": [{"name": "b", "size": 2}],
    "named": {"c": {"name": "c", "size": 3}},
    "numbers": {"x": None, "y": 1},
    "anything": {"deep": [1, {"er": None}]},
}


def test_record_is_read_by_its_types() -> None:
    outer = Outer.from_json(OUTER)
    assert outer.several == (Inner(name="b", size=2),)
    assert outer.named == {"c": Inner(name="c", size=3)}
    assert outer.to_json() == OUTER


def test_unknown_fields_are_kept_at_every_depth() -> None:
    later = json.loads(canonical(OUTER))
    for part in (later, later["inner"], later["several"][0], later["named"]["c"]):
        part["later"] = {"since": 2}
    outer = Outer.from_json(later)
    assert outer.to_json() == later
    assert outer == Outer.from_json(OUTER), "unknown fields do not count in a comparison"
    assert replace(outer, anything=None).to_json()["later"] == {"since": 2}, "a changed copy keeps them"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"inner": None},
        {"inner": {"name": 7}},
        {"inner": {"name": "a", "size": "1"}},
        {"inner": {"size": 1}},
        {"inner": {"name": "a"}, "several": None},
        {"inner": {"name": "a"}, "several": {"name": "b"}},
        {"inner": {"name": "a"}, "named": []},
        {"inner": {"name": "a"}, "numbers": {"x": "1"}},
        {"inner": "a"},
    ],
)
def test_record_of_other_types_is_damaged(data: dict[str, Any]) -> None:
    with pytest.raises(Damaged, match="Outer"):
        Outer.from_json(data)


# -- through fold and snapshot -------------------------------------------------------------------------------------------


def later_fields(data: Any) -> Any:
    """Return ``data`` with one more field in every record, as a newer version would write it."""
    if isinstance(data, list):
        return [later_fields(item) for item in data]
    if isinstance(data, dict):
        return {name: later_fields(item) for name, item in data.items()} | {"later": "kept"}
    return data


EVENTS: tuple[e.Event, ...] = (
    e.HistoryOpened(incarnation="i", job="j", scope=""),
    e.BranchOpened(
        branch=1,
        application="",
        base=e.Point(id=7),
        token=e.Token(dag="d", run="r", task="t"),
        by="o",
        reason="restore=7",
    ),
    e.LaunchPlanned(
        spec=e.LaunchSpec(
            application="",
            token=e.Token(dag="d", run="r", task="t"),
            try_number=1,
            owner="d.t",
            run="r",
            run_after=None,
            started_at=at(0),
            restore="latest",
        ),
        launch=1,
        restore_point=e.Point(id=7),
    ),
    e.AttemptStarted(
        epoch=1,
        launch=1,
        driver="nonce",
        restore_point=None,
        application_digest="",
        versions=Versions(),
        checkpointing=CheckpointConfig().to_json(),
    ),
    e.CheckpointTriggered(
        request=e.Request(token="r1", try_number=1, kind="checkpoint"),
        id=1,
        epochs=(1,),
        branch=1,
        plan=("",),
        timeout_s=600.0,
    ),
    e.CheckpointTriggered(
        request=e.Request(token="r2", try_number=1, kind="checkpoint"),
        id=2,
        epochs=(1,),
        branch=1,
        plan=("",),
        timeout_s=600.0,
    ),
    e.CheckpointCompleted(
        id=1,
        digest="d",
        metadata_bytes=9,
        bytes=1,
        states=(StateEntry(uid="u", kind="stage", run="r", file_sets=("state/u/1-a",)),),
    ),
    e.CheckpointAborted(id=2, reason="expired", phase="acknowledge"),
    e.AttemptEnded(epoch=1, outcome="failed", exit_code=1, reported_by="driver"),
)


def test_event_keeps_unknown_fields() -> None:
    for event in EVENTS:
        data = {"kind": e.kind_of(type(event)), **later_fields(event.to_json())}
        assert e.event_from_json(data).to_json() == data


def test_snapshot_keeps_unknown_fields_over_the_next_boundary() -> None:
    """A newer version writes a boundary, this version the entries and the next boundary."""
    store = written(SHORT + 2, segment=SHORT)
    snapshot: dict[str, Any] = raw(store, SHORT)["snapshot"]
    snapshot["later"] = [1]
    snapshot["launches"][0]["later"] = 2
    snapshot["runs"][0]["later"] = 3
    snapshot["branch"]["later"] = 4
    rewrite(store, SHORT, snapshot=snapshot)
    older = open_journal(store, segment=SHORT)
    write(older, SHORT)
    snapshot = raw(store, 2 * SHORT)["snapshot"]
    assert snapshot["later"] == [1]
    assert [launch.get("later") for launch in snapshot["launches"]] == [2, *[None] * (len(snapshot["launches"]) - 1)]
    assert snapshot["runs"][0]["later"] == 3
    assert snapshot["branch"]["later"] == 4


def test_seal_keeps_unknown_fields_of_an_acknowledgement() -> None:
    body = checked(later_fields(acknowledgement(1, stage("clean", 1), value("count", 1, 7)).to_json()))
    ack = Acknowledgement.from_bytes(body)
    assert ack.to_bytes() == body
    assert Seal.from_bytes(in_a_seal(ack).to_bytes()).applications[""].to_bytes() == body


def test_stored_objects_are_canonical_json() -> None:
    store = MemoryStore()
    coordinator = driver(store)
    take(coordinator)
    stored = {key: body for key, body in store.objects.items() if "/state/" not in key}
    assert KEYS.seal(1) in stored
    for body in stored.values():
        assert canonical(json.loads(body)) == body


@given(json_values)
def test_record_encodes_itself_as_its_plain_json(data: Any) -> None:
    ack = acknowledgement(1, stage("clean", 1), value("count", 1, data), run_values={"b": data, "a": None})
    later = Acknowledgement.from_json(later_fields(ack.to_json()) | {"m": data})
    for record in (ack, later, *ack.states):
        assert record.encoded.encode() == canonical(record.to_json())


def test_state_that_is_handed_on_is_encoded_once() -> None:
    state = stage("clean", 1)
    assert state.encoded is state.encoded
    assert state.entry.encoded is state.entry.encoded
    assert replace(state, run="day-2").encoded == state.encoded.replace("day-1", "day-2")


def nested(lists: int) -> Any:
    return json.loads("[" * lists + "]" * lists)


def in_a_seal(ack: Acknowledgement) -> Seal:
    return Seal(
        inc="i", job="j", scope="", item=None, id=1, kind="checkpoint", branch=0, epochs=(1,), plan=("",),
        applications={"": ack},
    )  # fmt: skip


def test_acknowledgement_that_can_be_read_can_be_sealed() -> None:
    """Nobody could read the seal if an acknowledgement were nested as deeply as other objects may be."""
    deepest = acknowledgement(1, extra={"later": nested(Acknowledgement.deepest)})
    assert Acknowledgement.from_bytes(deepest.to_bytes()) == deepest
    assert Seal.from_bytes(in_a_seal(deepest).to_bytes()).applications == {"": deepest}
    with pytest.raises(Damaged, match="nested more than 126 times"):
        Acknowledgement.from_bytes(acknowledgement(1, extra={"later": nested(Acknowledgement.deepest + 1)}).to_bytes())


def test_state_that_can_be_read_can_be_handed_on() -> None:
    """However deep its value is: a seal of somebody else may hold deeper ones than this package writes."""
    for depth in (StateSnapshot.deepest, StateSnapshot.deepest + 1):
        sealed = in_a_seal(acknowledgement(1, value("count", 1, nested(depth))))
        try:
            (state,) = Seal.from_bytes(checked(sealed)).states.values()
        except Damaged:
            assert depth > StateSnapshot.deepest
        else:
            state.prove()
            assert depth == StateSnapshot.deepest


UNTYPED: dict[str, Any] = {"kind": 7}


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (value("count", 1, float("nan")), "JSON compliant"),
        (value("count", 1, "\ud800"), "surrogates not allowed"),
        (value("count", 1, nested(125)), "nested more than 124 times"),
        (value("count", -1, 7), "-1 is not a valid size"),
        (replace(value("count", 1, 7), **UNTYPED), "7 is not of type str"),
    ],
    ids=["not a number", "half a character", "too deep", "a number below 1", "another type"],
)
def test_state_that_nobody_could_read_proves_to_be_damaged(broken: StateSnapshot, error: str) -> None:
    with pytest.raises(Damaged, match=error):
        broken.prove()
    with pytest.raises(Damaged, match=error):
        acknowledgement(1, stage("clean", 1), broken).unproved()


@dataclass(frozen=True, kw_only=True)
class Grown(Record):
    name: str
    later: str | None = added(None)
    lists: tuple[int, ...] = added(factory=tuple)


def test_added_field_is_written_only_if_it_is_set() -> None:
    assert Grown(name="a").to_json() == {"name": "a"}
    assert Grown.from_json({"name": "a"}) == Grown(name="a")
    grown = Grown(name="a", later="b", lists=(1,))
    assert grown.to_json() == {"name": "a", "later": "b", "lists": [1]}
    assert Grown.from_json(grown.to_json()) == grown


def test_known_field_is_not_kept_as_unknown() -> None:
    """Otherwise the old value of a field would come back after the field was unset."""
    grown = Grown.from_json({"name": "a", "later": "b", "lists": [1], "newest": 2})
    assert grown.extra == {"newest": 2}
    assert replace(grown, later=None, lists=()).to_json() == {"name": "a", "newest": 2}


@pytest.mark.parametrize(("field", "value"), [("queued_at", 7), ("id", "7"), ("epochs", ["1"])])
def test_event_of_other_types_is_damaged(field: str, value: Any) -> None:
    (event,) = (candidate for candidate in EVENTS if isinstance(candidate, e.CheckpointTriggered) and candidate.id == 1)
    with pytest.raises(Damaged, match=r"CheckpointTriggered cannot be read: .* is not "):
        e.event_from_json(event.to_json() | {field: value})


@pytest.mark.parametrize(("field", "value"), [("gated", "yes"), ("token", 7), ("try_number", "1")])
def test_request_of_other_types_is_damaged(field: str, value: Any) -> None:
    with pytest.raises(Damaged, match=r"Request cannot be read: .* is not "):
        e.Request.from_json(e.Request(token="asked").to_json() | {field: value})
