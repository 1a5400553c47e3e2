"""Stored data that this package never writes: read as damaged, by name, and never by an untyped error. Runs anywhere."""

from __future__ import annotations

import functools
import json
import math
import random
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.coordinator.savepoint_target import ClaimLock, DisposedStub
from airflow_checkpoint_provider.errors import CheckpointError, Damaged, FormatTooNew
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import fields as stored
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, File, FileSet, Seal
from airflow_checkpoint_provider.protocol.records import Record, canonical, parse
from airflow_checkpoint_provider.protocol.state import Checkpoint, State, Status
from airflow_checkpoint_provider.protocol.transitions import fold

GOLDEN = Path(__file__).parent / "golden" / "v1"
MUTATIONS = 40  # of each golden file
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


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (File, {"name": "part-0.parquet", "bytes": 1, "rows": 1}, {"bytes": -1}),
        (File, {"name": "part-0.parquet", "bytes": 1, "rows": 1}, {"bytes": True}),
        (File, {"name": "part-0.parquet", "bytes": 1, "rows": 1}, {"rows": 1.0}),
        *(
            (File, {"name": "a/b.parquet", "bytes": 1, "rows": 1}, {"name": name})
            for name in ("", "/etc/passwd", "../x", "a/../x", "a//x", ".aws", "a/.x", "_SUCCESS", "a\nb")
        ),
        *(
            (FileSet, {"path": "state/clean/1-abc"}, {"path": path})
            for path in ("", "journal", "state", "state/../1-a", "state/a/b/1-a", "/state/a/1-a", "state/.a/1-a")
        ),
        *((FileSet, {"path": "state/clean/1-abc"}, {"path": path}) for path in ("state/a/0-a", "state/a/1-a/..")),
        (FileSet, {"path": "state/clean/1-abc"}, {"files": ""}),
        (FileSet, {"path": "state/clean/1-abc"}, {"files": {}}),
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
    with pytest.raises(Damaged, match=rf"^a stored {read.__name__} cannot be read: .* is no "):
        read.from_json(good | bad)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", 0),
        ("plan", []),
        ("epochs", [0]),
        ("status", "done"),
        ("triggered_at", "soon"),
        ("triggered_at", "2026-11-22T10:00:00"),
        ("completed_at", "yesterday"),
    ],
)
def test_checkpoint_in_a_snapshot_with_such_a_value_is_damaged(field: str, value: Any) -> None:
    data = json.loads((GOLDEN / "entry-boundary.json").read_bytes())["snapshot"]["checkpoints"][0]
    Checkpoint.from_json(data)
    with pytest.raises(Damaged, match="is no"):
        Checkpoint.from_json(data | {field: value})


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
    + [{"keep": "within", "seconds": seconds} for seconds in (1e300, "x", -1, None)],
)
def test_retention_policy_that_is_none_is_damaged(retention: Any) -> None:
    with pytest.raises(Damaged, match="is no configuration of checkpoints"):
        e.AttemptStarted.from_json(STARTED | {"checkpointing": checkpointing(retention)})


# -- what is written can be read, and what is read can be written --------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    bool: st.booleans(),
    int: st.integers(-(2**60), 2**60),
    float: st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10),
    Any: st.recursive(st.none() | st.integers() | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=3),
    stored.Number: st.integers(1, 2**40),
    stored.Size: st.integers(0, 2**60),
    stored.Seconds: st.floats(0, 1e9),
    stored.Time: st.just("2026-11-22T10:00:00.000Z"),
    stored.TimeOrEmpty: st.sampled_from(["", "2026-11-22T10:00:00.000Z"]),
    stored.JobId: st.just("flights.delays"),
    stored.JobIdOrEmpty: st.sampled_from(["", "flights.delays"]),
    stored.FileSetPath: st.sampled_from(["state/clean/1-abc", "state/~c3~bc/22-0"]),
    stored.FileName: st.sampled_from(["part-0.parquet", "a/b=1/part"]),
    stored.Outcome: st.sampled_from(stored.OUTCOMES),
    stored.KindName: st.sampled_from(["checkpoint", "suspend_savepoint"]),
    stored.Checkpointing: st.sampled_from([{}, CheckpointConfig().to_json()]),
    stored.Plan: st.just(("",)),
    Status: st.sampled_from(["pending", "forgotten"]),
}


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field with this type hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in VALUES:
        return VALUES[hint]
    if type(None) in arguments:
        return st.none() | strategy(next(argument for argument in arguments if argument is not type(None)))
    if origin is tuple:
        return st.lists(strategy(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(texts, strategy(arguments[1]), max_size=2)
    return records(hint)


@functools.cache
def records(record: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(record, include_extras=True)
    names = [field.name for field in fields(record) if field.name not in ("extra", "v", "target")]
    return st.builds(record, **{name: strategy(hints[name]) for name in names})


def stored_classes(base: type[Record]) -> set[type[Record]]:
    """Return the classes of this package that are stored."""
    below = {record for child in base.__subclasses__() for record in (child, *stored_classes(child))}
    return {record for record in below if record.__module__.startswith("airflow_") and record.__name__[0] != "_"}


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


# -- damaged bytes -------------------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[bytes], object]] = {
    "acknowledgement": Acknowledgement.from_bytes,
    "seal": Seal.from_bytes,
    "heartbeat": lambda body: Beat.from_json(parse(body, "heartbeat")),
    "savepoint-claimed": lambda body: ClaimLock.from_json(parse(body, "_claimed")),
    "savepoint-stub": lambda body: DisposedStub.from_json(parse(body, "_metadata")),
}


def reader(name: str) -> Callable[[bytes], object]:
    return READERS.get(name, lambda body: (entry := Entry.from_bytes(body, name), entry.closed))


def mutated(body: bytes, chance: random.Random) -> bytes:
    """Return ``body`` with one change: a flipped bit, a lost or doubled piece, or another value in place of one."""
    at = chance.randrange(len(body))
    size = chance.randrange(1, 20)
    return chance.choice(
        [
            body[:at] + bytes([body[at] ^ 1 << chance.randrange(8)]) + body[at + 1 :],
            body[:at],
            body[:at] + body[at + size :],
            body[: at + size] + body[at:],
            swapped(body, chance),
        ]
    )


def swapped(body: bytes, chance: random.Random) -> bytes:
    """Return ``body`` with the value of one field replaced by a value of another type or range."""
    data = json.loads(body)
    part: Any = data
    while True:
        inside = list(part) if isinstance(part, dict) else list(range(len(part)))
        name = chance.choice(inside)
        if not isinstance(part[name], dict | list) or not part[name] or chance.random() < 0.2:
            break
        part = part[name]
    odd: list[Any] = [
        None,
        True,
        -1,
        0,
        0.0,
        1e300,
        math.pi,
        "",
        "../x",
        "9" * 30,
        [],
        [[]],
        {},
        {"v": 1},
        {"kind": "x"},
    ]
    part[name] = chance.choice(odd)
    return json.dumps(data).encode()


def attack(file: Path, count: int, chance: random.Random) -> None:
    """Read ``count`` mutations of a stored file. Each is refused by a typed error, or can be written again."""
    body, read = file.read_bytes(), reader(file.stem)
    for _ in range(count):
        hurt = mutated(body, chance)
        try:
            record: Any = read(hurt)
        except CheckpointError:
            continue
        record = record[0] if isinstance(record, tuple) else record
        canonical(record.to_json()) if isinstance(record, Record) else record.to_bytes()


FILES = sorted(file for file in GOLDEN.glob("*.json") if not file.stem.startswith("events"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_mutated_file_is_refused_by_a_typed_error_or_can_be_written_again(file: Path) -> None:
    attack(file, MUTATIONS, random.Random(file.stem))


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_many_mutations_are_refused_by_typed_errors(file: Path) -> None:
    attack(file, 75_000, random.Random(f"many {file.stem}"))
