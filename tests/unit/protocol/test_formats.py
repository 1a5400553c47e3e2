"""Golden files of format version 1: every later version reads them (docs/protocol.md). Runs anywhere.

This module writes missing files with ``WRITE_GOLDEN_FILES=1`` and never overwrites one. A later format gets its own files.
A golden file that must be rewritten means that stored data can no longer be read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By, Entry, closed_stub
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat, EarliestOffsets, Process, QueryProgress, RefusedStart
from airflow_checkpoint_provider.coordinator.savepoint_target import ClaimLock, DisposedStub
from airflow_checkpoint_provider.errors import Damaged, Queued
from airflow_checkpoint_provider.policies.retention import KeepLatest, KeepWithin
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.keys import SEGMENT, History, Keys
from airflow_checkpoint_provider.protocol.metadata import (
    Acknowledgement,
    Footer,
    Measures,
    Seal,
    StageDetail,
    StateEntry,
    Versions,
)
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import fold
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support import query_lives
from tests.support.acknowledgements import acknowledgement, file_set, stage, value
from tests.support.garbage import expire
from tests.support.histories import at, clear, launch, start

GOLDEN = Path(__file__).parent / "golden" / "v1"
KEYS = Keys(History("flights.delays", "scheduled__2026-11-20").prefix)
SAVEPOINTS_BOUNDARY = 19
BOUNDARY = 18  # of a short segment, so that the files stay short, too
QUERIES_BOUNDARY = 18
VERSIONS = Versions(package="0.1.0", spark="4.2.0")
PROCESS = Process(host="worker-3", boot_id="b4f0c2", pid_namespace="pid:[4026531836]", pid=4711, start_ticks="123456")


def repeatable(store: MemoryStore, segment: int = SEGMENT, nonce: int = 1) -> Journal:
    """Return a task's journal whose entries are the same in each run. ``nonce`` is the first of its nonces."""
    nonces = iter(f"{number:032x}" for number in range(nonce, nonce + 98))
    times = iter(at(minute) for minute in range(99))
    by = By("task", "flights.delays", "worker-3")
    return Journal(store, KEYS, by, segment=segment, nonce=lambda: next(nonces), clock=lambda: next(times))


def detailed(number: int) -> Acknowledgement:
    """Return an acknowledgement in which every field of version 1 is set."""
    clean = stage("clean", number, made_of=file_set("clean", files=2))
    detail = StageDetail(
        plan="p1an", inputs="1nputs",
        python=True, application="d1gest", schema='{"type":"struct","fields":[]}', codec="zstd", sorted=True, version="2",
        function=True, earlier_stages={"raw": "state/raw/1-a"}, values={"count": 7},
    )  # fmt: skip
    measures = Measures(checkpoint=1, barrier="stage 'clean'", work_s=4320.5, sync_s=0.25, new_bytes=38)
    return acknowledgement(
        number,
        replace(clean, stage=detail, measures=measures),
        value("Größe", number, {"rows": 7, "deep": [1, None, True, 2.5, "ü"]}),
        run="scheduled__2026-11-20", run_values={"count": 0}, versions=VERSIONS,
    )  # fmt: skip


def with_footers() -> Acknowledgement:
    """Return an acknowledgement whose files have the checksums of their footers."""
    clean = file_set("clean", files=1)
    files = tuple(replace(file, footer=Footer(bytes=8, checksum="9f3c01ab")) for file in clean.files)
    return acknowledgement(2, stage("clean", 2, made_of=replace(clean, files=files)))


def life(store: MemoryStore) -> None:
    """Write entries 0 to 18: checkpoints with every outcome, an adoption, a stop, a retry and a clear."""
    journal = repeatable(store, BOUNDARY)
    scope, run = "scheduled__2026-11-20", "scheduled__2026-11-20"
    checkpointing = CheckpointConfig(retention=KeepLatest(1) | KeepWithin(days=7)).to_json()
    plan = launch(run, scope=scope, run_after="2026-11-20T00:00:00Z")
    journal.append(plan)
    first = start(run, driver="dr1ver", application_digest="d1gest", versions=VERSIONS, checkpointing=checkpointing)
    journal.append(first)
    coordinator = Coordinator(journal, 1)
    for number in (1, 2):
        coordinator.trigger(e.Request(token=f"attempt 1 barrier {number}", timeout_s=600.0, barrier="stage 'clean'"))
        coordinator.acknowledge(detailed(number))
        coordinator.complete(number)
    expire(coordinator, at(20_000))
    journal.append(launch(run, 2, scope=scope, seen_alive=True))
    coordinator.trigger(e.Request(token="attempt 1 barrier 3", timeout_s=600.0, barrier="end"))
    coordinator.abort(3, "expired", missing=("",), details="its batch has been running for 14 min")
    coordinator.trigger(e.Request(token="attempt 1 barrier 4", timeout_s=600.0, barrier="end"))
    journal.append(c.RequestStop(launch=1, try_number=2, by="task", reason="marked failed"))
    journal.append(c.EndAttempt(epoch=1, outcome="cancelled", exit_code=1, reported_by="driver"))
    again: dict[str, Any] = {"versions": VERSIONS, "checkpointing": checkpointing}
    journal.append(launch(run, 3, scope=scope))
    journal.append(start(run, 3, driver="dr1ver2", **again))
    journal.append(clear(run, 4, scope=scope, on_clear="restart"))
    journal.append(start(run, 4, generation=1, driver="dr1ver3", **again))
    Coordinator(journal, 3).trigger(e.Request(token="attempt 3 barrier 1", timeout_s=600.0, barrier="stage 'clean'"))


@cache
def lived() -> MemoryStore:
    store = MemoryStore()
    life(store)
    return store


def life_with_savepoints(store: MemoryStore) -> None:
    """Write queued and dropped requests, a savepoint, a stop with a savepoint, and a restore from a claimed savepoint."""
    journal = repeatable(store, SAVEPOINTS_BOUNDARY, nonce=1 << 100)
    run = "scheduled__2026-11-20"
    config = CheckpointConfig(
        max_concurrent=2, tolerable_failures=3, interval="1 min", min_pause="5 s", retention=KeepWithin(days=7)
    ).to_json()
    journal.append(launch(run, run_after="2026-11-20T00:00:00Z"))
    journal.append(start(run, driver="dr1ver", versions=VERSIONS, checkpointing=config))
    coordinator = Coordinator(journal, 1)
    saved: dict[str, Any] = {"origin": "task", "folder": "s3://lake/savepoints", "owner": "ops.savepoint"}
    coordinator.trigger(e.Request(token="savepoint", kind="savepoint", name="before the change", pinned=True, **saved))
    coordinator.trigger(e.Request(token="one", origin="cli", owner="ann", confirm_commits=True))
    for request, origin in (("two", "task"), ("timer", "periodic")):
        with suppress(Queued):
            coordinator.trigger(e.Request(token=request, origin=origin, owner="ops.checkpoint"))
    for number in (1, 2):
        coordinator.acknowledge(detailed(number))
        coordinator.complete(number)
    journal.append(c.ConfirmPublished(id=1))
    coordinator.confirm_commits(2)
    for request in ("three", "four"):
        with suppress(Queued):
            coordinator.trigger(e.Request(token=request, origin="task", owner="ops.checkpoint"))
    coordinator.trigger(e.Request(token="stop", kind="suspend_savepoint", **saved))
    number = coordinator.state.pending[-1].id
    coordinator.acknowledge(detailed(number))
    coordinator.complete(number)
    journal.append(c.EndAttempt(epoch=1, outcome="suspended", exit_code=79))
    token = e.Token(dag="ops", run=run, task="restore")
    for base in ("s3://lake/savepoints/savepoint-orders-41-9f3c", "s3://lake/savepoints/savepoint-orders-42-77aa"):
        restore = c.Restore(
            token=replace(token, item=base), base=e.Point(pointer=base), by="ops.restore", reason="upgrade", id_floor=41,
            claimed=True, rename={"sum": "total"},
        )  # fmt: skip
        journal.append(restore)
    claim = journal.state.claims[0].pointer
    journal.append(c.Condemn(ids=(1,), claims=(), now=at(20_000), disposing=True))
    journal.append(c.Condemn(ids=(), claims=(claim,), now=at(20_000)))
    journal.append(c.Forget(ids=(1,), claims=()))


@cache
def with_savepoints() -> MemoryStore:
    store = MemoryStore()
    life_with_savepoints(store)
    return store


def short_life(store: MemoryStore) -> None:
    """Write a finished run whose history is closed: entries 0 to 4, and 64."""
    run = "scheduled__2026-11-20"
    journal = repeatable(store)
    plan = launch(run, scope=run, run_after="2026-11-20T00:00:00Z")
    journal.append(plan)
    journal.append(start(run, driver="dr1ver", versions=VERSIONS, checkpointing=CheckpointConfig().to_json()))
    Coordinator(journal, 1).trigger(e.Request(token="attempt 1 barrier 1", timeout_s=600.0, barrier="end"))
    journal.append(c.EndAttempt(epoch=1, outcome="finished", exit_code=0))
    journal.append(c.CloseHistory(reason="the run finished", now=at(20_000)))
    journal.append(c.FinishClosing())


@cache
def with_queries() -> MemoryStore:
    store = MemoryStore()
    query_lives.live(repeatable(store, QUERIES_BOUNDARY))
    return store


APPLICATION_BOUNDARY = 4


@cache
def with_applications() -> MemoryStore:
    """Return entries 0 to 4: a try and its retry, each with the parts of its application."""
    store = MemoryStore()
    run = "scheduled__2026-11-20"
    journal = repeatable(store, APPLICATION_BOUNDARY)
    for try_number, script in ((1, "0a1b2c3d"), (2, "4e5f6a7b")):
        parts = {"the script": script, "helpers/dates.py": "8c9d0e1f"}
        journal.append(launch(run, try_number, scope=run, run_after="2026-11-20T00:00:00Z"))
        journal.append(start(run, try_number, driver=f"dr1ver{try_number}", versions=VERSIONS, application_parts=parts))
        if try_number == 1:
            journal.append(c.EndAttempt(epoch=1, outcome="failed", exit_code=1))
    return store


LAUNCH_END_BOUNDARY = 2


@cache
def with_launch_end() -> MemoryStore:
    """Return entries 0 to 2: a launch whose driver ended before it attached, and the next try."""
    store = MemoryStore()
    run = "scheduled__2026-11-20"
    journal = repeatable(store, LAUNCH_END_BOUNDARY)
    journal.append(launch(run, scope=run, run_after="2026-11-20T00:00:00Z"))
    journal.append(c.EndLaunch(launch=1, try_number=1, outcome="failed", exit_code=1))
    journal.append(launch(run, 2, scope=run, run_after="2026-11-20T00:00:00Z"))
    return store


@cache
def closed() -> MemoryStore:
    store = MemoryStore()
    short_life(store)
    return store


def closed_stub_of(body: bytes) -> bytes:
    entry = Entry.from_bytes(body, "a boundary")
    assert entry.snapshot
    return closed_stub(fold(entry.snapshot, entry.n, entry.at, entry.events)).to_bytes()


def heartbeat() -> bytes:
    beat = Beat(
        counter=41, at=at(3), process=PROCESS, epoch=2, launch=3, attached_at=at(2), application_change="application unchanged",
        activity="stage 'joined'", fraction=0.61, reused=("clean",), computed=("raw",), protected_since=at(1),
        refusal=RefusedStart(code="CKP131", text="another driver is alive"),
    )  # fmt: skip
    return canonical(beat.to_json())


QUERIES = (
    QueryProgress(
        uid="orders", batch=412, ended_at=at(3), input_rate=41.6, processed_rate=38.0, rows_behind=35, state_rows=30,
        state_bytes=8880,
    ),
    QueryProgress(uid="clicks", batch=-1),
)  # fmt: skip


KAFKA = EarliestOffsets(uid="orders", at=at(3), sources={"0": '{"orders":{"0":150,"1":7}}'})


def completed_behind_kafka() -> e.CheckpointCompleted:
    """Return the event of a checkpoint of a query that reads Kafka."""
    offsets = {"0": '{"orders":{"0":120,"1":7}}'}
    orders = StateEntry(uid="orders", kind="query", run="run", batch=412, sources=offsets)
    return e.CheckpointCompleted(id=7, digest="d1gest", bytes=41, states=(orders,))


def stub() -> bytes:
    names = {"job": "flights.delays", "scope": "scheduled__2026-11-20", "item": None}
    return Entry(inc="1ncarnation", n=0, nonce="", at="", by={}, events=(), stub=True, extra=names).to_bytes()


WRITERS: dict[str, Callable[[], bytes]] = {
    "entry-0": lambda: lived().objects[KEYS.entry(0)],
    "entry-0-checksum": lambda: lived().objects[KEYS.entry(0)],
    "entry-boundary": lambda: lived().objects[KEYS.entry(BOUNDARY)],
    "entry-boundary-ended": lambda: lived().objects[KEYS.entry(BOUNDARY)],
    "entry-boundary-savepoints": lambda: with_savepoints().objects[KEYS.entry(SAVEPOINTS_BOUNDARY)],
    "entry-boundary-application": lambda: with_applications().objects[KEYS.entry(APPLICATION_BOUNDARY)],
    "entry-boundary-launch-end": lambda: with_launch_end().objects[KEYS.entry(LAUNCH_END_BOUNDARY)],
    "entry-launch-end": lambda: with_launch_end().objects[KEYS.entry(1)],
    "events-savepoints": lambda: canonical(
        [json.loads(with_savepoints().objects[KEYS.entry(n)])["events"] for n in range(SAVEPOINTS_BOUNDARY + 1)]
    ),
    "entry-boundary-queries": lambda: with_queries().objects[KEYS.entry(QUERIES_BOUNDARY)],
    "events-queries": lambda: canonical(
        [json.loads(with_queries().objects[KEYS.entry(n)])["events"] for n in range(QUERIES_BOUNDARY + 1)]
    ),
    "acknowledgement-query": lambda: with_queries().objects[KEYS.acknowledgement(1, "")],
    "acknowledgement-edges": lambda: query_lives.chained().to_bytes(),
    "entry-stub": stub,
    "acknowledgement": lambda: lived().objects[KEYS.acknowledgement(2, "")],
    "acknowledgement-footers": lambda: with_footers().to_bytes(),
    "seal": lambda: lived().objects[KEYS.seal(2)],
    "heartbeat": heartbeat,
    "heartbeat-queries": lambda: canonical(Beat(counter=41, at=at(3), epoch=2, queries=QUERIES).to_json()),
    "heartbeat-kafka": lambda: canonical(Beat(counter=41, at=at(3), epoch=2, earliest=(KAFKA,)).to_json()),
    "events-kafka": lambda: canonical([[completed_behind_kafka().to_json()]]),
    "savepoint-claimed": lambda: canonical(
        ClaimLock(owner="1ncarnation", by="orders, task restore", at=at(4)).to_json()
    ),
    "savepoint-stub": lambda: canonical(DisposedStub(by="task savepoint", at=at(5)).to_json()),
    "entry-closing": lambda: closed().objects[KEYS.entry(4)],
    "entry-closed": lambda: closed().objects[KEYS.entry(64)],
    "entry-closed-stub": lambda: closed_stub_of(closed().objects[KEYS.entry(64)]),
    "events": lambda: canonical([json.loads(lived().objects[KEYS.entry(n)])["events"] for n in range(BOUNDARY + 1)]),
}


def rewritten(body: bytes) -> bytes:
    return canonical([[e.event_from_json(event).to_json() for event in entry] for entry in json.loads(body)])


REWRITERS: dict[str, Callable[[bytes], bytes]] = {
    "entry-0": lambda body: Entry.from_bytes(body, "entry 0").to_bytes(),
    "entry-0-checksum": lambda body: Entry.from_bytes(body, "entry 0").to_bytes(),
    "entry-boundary": lambda body: Entry.from_bytes(body, "a boundary").to_bytes(),
    "entry-boundary-ended": lambda body: Entry.from_bytes(body, "a boundary").to_bytes(),
    "entry-boundary-savepoints": lambda body: Entry.from_bytes(body, "a boundary").to_bytes(),
    "entry-boundary-application": lambda body: Entry.from_bytes(body, "a boundary").to_bytes(),
    "entry-boundary-launch-end": lambda body: Entry.from_bytes(body, "a boundary").to_bytes(),
    "entry-launch-end": lambda body: Entry.from_bytes(body, "entry 1").to_bytes(),
    "entry-boundary-queries": lambda body: Entry.from_bytes(body, "a boundary").to_bytes(),
    "events-queries": rewritten,
    "acknowledgement-query": lambda body: Acknowledgement.from_bytes(body).to_bytes(),
    "acknowledgement-edges": lambda body: Acknowledgement.from_bytes(body).to_bytes(),
    "entry-stub": lambda body: Entry.from_bytes(body, "entry 0").to_bytes(),
    "entry-closing": lambda body: Entry.from_bytes(body, "entry 4").to_bytes(),
    "entry-closed": lambda body: Entry.from_bytes(body, "entry 64").to_bytes(),
    "entry-closed-stub": lambda body: Entry.from_bytes(body, "entry 64").to_bytes(),
    "acknowledgement": lambda body: Acknowledgement.from_bytes(body).to_bytes(),
    "acknowledgement-footers": lambda body: Acknowledgement.from_bytes(body).to_bytes(),
    "seal": lambda body: Seal.from_bytes(body).to_bytes(),
    "heartbeat": lambda body: canonical(Beat.from_json(json.loads(body)).to_json()),
    "heartbeat-queries": lambda body: canonical(Beat.from_json(json.loads(body)).to_json()),
    "heartbeat-kafka": lambda body: canonical(Beat.from_json(json.loads(body)).to_json()),
    "events-kafka": rewritten,
    "savepoint-claimed": lambda body: canonical(ClaimLock.from_json(json.loads(body)).to_json()),
    "savepoint-stub": lambda body: canonical(DisposedStub.from_json(json.loads(body)).to_json()),
    "events": rewritten,
    "events-savepoints": rewritten,
}


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes().removesuffix(b"\n")


@pytest.fixture(scope="module", autouse=True)
def written_once() -> None:
    if os.environ.get("WRITE_GOLDEN_FILES") != "1":
        return
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, write in WRITERS.items():
        path = GOLDEN / f"{name}.json"
        if not path.exists():
            path.write_bytes(write() + b"\n")


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_golden_file_is_read_and_written_back_unchanged(name: str) -> None:
    """Fails if a field is added, renamed or dropped. An added field gets a golden file of its own."""
    again = REWRITERS[name](golden(name))
    if b'"crc"' not in golden(name) and isinstance(data := json.loads(again), dict):  # older than the checksum
        again = canonical({name: value for name, value in data.items() if name != "crc"})
    assert again == golden(name)


def test_golden_files_hold_every_kind_of_event() -> None:
    entries = [
        *json.loads(golden("events")),
        *json.loads(golden("events-savepoints")),
        *json.loads(golden("events-queries")),
        *(json.loads(golden(f"entry-{name}"))["events"] for name in ("closing", "closed", "launch-end")),
    ]
    kinds = {event["kind"] for entry in entries for event in entry}
    assert kinds == set(e.KINDS)


def fields(data: object) -> Iterator[str]:
    if isinstance(data, dict):
        for key, item in data.items():
            yield key
            yield from fields(item)
    elif isinstance(data, list):
        for item in data:
            yield from fields(item)


def test_first_entry_opens_the_history_and_plans_a_launch() -> None:
    entry = Entry.from_bytes(golden("entry-0"), "entry 0")
    assert (entry.inc, entry.n, entry.at, entry.stub) == ("1ncarnation", 0, at(0), False)
    assert entry.by == {"place": "task", "owner": "flights.delays", "host": "worker-3", "epoch": None}
    assert entry.snapshot == State()
    opened, planned = entry.events
    assert isinstance(opened, e.HistoryOpened)
    assert (opened.job, opened.scope, opened.item) == ("flights.delays", "scheduled__2026-11-20", None)
    assert isinstance(planned, e.LaunchPlanned)
    assert (planned.launch, planned.spec.try_number, planned.spec.run_after, planned.restore_point) == (
        1,
        1,
        "2026-11-20T00:00:00Z",
        None,
    )
    assert planned.spec.token == e.Token(dag="flights", run="scheduled__2026-11-20", task="delays")


def test_boundary_holds_the_state_before_it() -> None:
    entry = Entry.from_bytes(golden("entry-boundary"), "a boundary")
    assert entry.n == BOUNDARY
    state = entry.snapshot
    assert state
    assert (state.n, state.incarnation, state.job) == (BOUNDARY - 1, "1ncarnation", "flights.delays")
    assert [(checkpoint.id, checkpoint.status, checkpoint.reason) for checkpoint in state.checkpoints] == [
        (1, "forgotten", ""),
        (2, "retained", ""),
        (3, "aborted", "expired"),
        (4, "aborted", "attempt cancelled"),
    ]
    assert [(attempt.epoch, attempt.outcome, attempt.first_completed) for attempt in state.attempts] == [
        (1, "cancelled", 1),
        (2, None, None),
        (3, None, None),
    ]
    assert [(launch.number, launch.adopted_by, launch.stop) for launch in state.launches] == [
        (1, 2, "task: marked failed"),
        (2, 0, None),
        (3, 0, None),
    ]
    restored = state.attempts[1]
    assert (restored.restore_point, restored.held_file_sets) == (e.Point(id=2), (1,))
    assert [file_set.path for file_set in state.file_sets] == ["state/clean/1-n0nce"]
    assert (state.branch.number, state.branch.base) == (1, None)
    assert (state.next_id, state.next_launch, state.last_epoch) == (5, 4, 3)
    assert state.counts == {"completed": 2, "aborted": 2}
    (triggered,) = entry.events
    assert isinstance(triggered, e.CheckpointTriggered)
    assert (triggered.id, triggered.epochs, triggered.plan, triggered.timeout_s) == (5, (3,), ("",), 600.0)


def test_stub_keeps_its_number_and_the_names() -> None:
    entry = Entry.from_bytes(golden("entry-stub"), "entry 0")
    assert (entry.stub, entry.n, entry.inc, entry.events) == (True, 0, "1ncarnation", ())
    assert entry.extra == {"job": "flights.delays", "scope": "scheduled__2026-11-20", "item": None}


def test_closed_history_is_equal_from_its_boundary_and_its_stub() -> None:
    entry = Entry.from_bytes(golden("entry-closed"), "entry 64")
    stub = Entry.from_bytes(golden("entry-closed-stub"), "entry 64")
    assert (entry.n, stub.n, stub.stub, entry.events) == (64, 64, True, (e.HistoryClosed(reason="the run finished"),))
    assert entry.snapshot
    assert (entry.snapshot.n, entry.snapshot.closing_reason, entry.snapshot.closed) == (4, "the run finished", False)
    assert stub.closed == fold(entry.snapshot, entry.n, entry.at, entry.events)
    assert stub.closed == State(
        n=64, at=at(5), incarnation="1ncarnation", job="flights.delays", scope="scheduled__2026-11-20",
        next_launch=2, next_id=2, last_epoch=1, closing_reason="the run finished", closed=True,
    )  # fmt: skip


def without_ends(state: State) -> State:
    """Leave out which entries ended the checkpoints: the oldest golden files do not hold it."""
    return replace(state, checkpoints=tuple(replace(checkpoint, ended_n=0) for checkpoint in state.checkpoints))


@pytest.mark.parametrize(
    ("kind", "boundary"), [("", BOUNDARY), ("-savepoints", SAVEPOINTS_BOUNDARY), ("-queries", QUERIES_BOUNDARY)]
)
def test_events_fold_to_the_state_of_the_boundary(kind: str, boundary: int) -> None:
    """Replay golden histories with the code of today."""
    state = State()
    for n, entry in enumerate(json.loads(golden(f"events{kind}"))[:boundary]):
        state = fold(state, n, at(n), (e.event_from_json(event) for event in entry))
    snapshot = Entry.from_bytes(golden(f"entry-boundary{kind}"), "a boundary").snapshot
    assert snapshot
    assert without_ends(state) == without_ends(snapshot)


def test_boundary_holds_the_entries_that_ended_its_checkpoints() -> None:
    snapshot = Entry.from_bytes(golden("entry-boundary-ended"), "a boundary").snapshot
    assert snapshot
    entries = json.loads(golden("events"))
    for checkpoint in snapshot.checkpoints:
        ended = [event["kind"] for event in entries[checkpoint.ended_n] if event.get("id") == checkpoint.id]
        assert {"checkpoint_completed", "checkpoint_aborted"} & {*ended}, checkpoint


def test_boundary_holds_dropped_requests_savepoints_and_claims() -> None:
    state = Entry.from_bytes(golden("entry-boundary-savepoints"), "a boundary").snapshot
    assert state
    assert [(drop.token, drop.reason) for drop in state.dropped_requests] == [
        ("timer", "the pause between two checkpoints"),
        ("four", "the job was suspended"),
    ]
    assert [
        (point.id, point.kind, point.status, point.published) for point in state.checkpoints if point.savepoint
    ] == [
        (1, "savepoint", "condemned", True),
        (5, "suspend_savepoint", "retained", False),
    ]
    assert [(claim.pointer[-7:], claim.status) for claim in state.claims] == [
        ("41-9f3c", "condemned"),
        ("42-77aa", "retained"),
    ]
    assert (state.next_id, state.branch.rename, state.suspended) == (42, {"sum": "total"}, None)
    confirmed = [point.id for point in state.checkpoints if point.request.confirm_commits and point.commits_confirmed]
    assert confirmed == [2]
    waited = state.checkpoint(3)
    assert waited
    assert (waited.request.token, waited.request.owner, waited.queued_at != "") == ("two", "ops.checkpoint", True)


def test_boundary_holds_queries_and_those_that_were_released() -> None:
    state = Entry.from_bytes(golden("entry-boundary-queries"), "a boundary").snapshot
    assert state
    assert [(query.uid, query.was, len(query.locations)) for query in state.queries] == [
        ("sales", ("orders",), 2),
        ("views", (), 1),
    ]
    (visits,) = state.released
    assert (visits.uid, visits.was, visits.to) == ("visits", ("clicks",), "s3://lake/checkpoints/clicks-again")
    assert [location.path for location in visits.locations] == ["query/clicks/2-n0nce"]
    sales, views = (query.newest for query in state.queries)
    assert sales.gone_back == e.GoneBack(batch=411, sink=query_lives.SINK, newest_file=query_lives.NEWEST_FILE)
    assert (views.begun, views.committed, views.adopted) == (7, 6, "s3://lake/checkpoints/views")
    assert (state.branch.rewinds, state.branch.rewind_sink) == (1, True)
    assert [entry.batch for checkpoint in state.checkpoints for entry in checkpoint.states] == [411]


def test_acknowledgement_holds_where_a_query_stood() -> None:
    ack = Acknowledgement.from_bytes(golden("acknowledgement-query"))
    assert ack == query_lives.saved(1, 411, 412)


def test_acknowledgement_holds_what_a_query_had_read_of_another_one() -> None:
    assert Acknowledgement.from_bytes(golden("acknowledgement-edges")) == query_lives.chained()


def test_files_have_the_checksums_of_their_footers() -> None:
    assert Acknowledgement.from_bytes(golden("acknowledgement-footers")) == with_footers()
    assert all(
        file.footer is None
        for file in Acknowledgement.from_bytes(golden("acknowledgement")).states[0].file_sets[0].files
    )


def test_seal_holds_its_acknowledgement() -> None:
    ack = Acknowledgement.from_bytes(golden("acknowledgement"))
    assert (ack.inc, ack.id, ack.application, ack.epoch, ack.nonce, ack.run) == (
        "1ncarnation", 2, "", 1, "ours", "scheduled__2026-11-20"
    )  # fmt: skip
    assert (ack.run_values, ack.versions) == ({"count": 0}, VERSIONS)
    clean, count = ack.states
    assert (count.uid, count.value) == ("Größe", {"rows": 7, "deep": [1, None, True, 2.5, "ü"]})
    assert clean.file_sets == (file_set("clean"),)
    assert clean.measures == Measures(checkpoint=1, barrier="stage 'clean'", work_s=4320.5, sync_s=0.25, new_bytes=38)
    assert clean.stage
    assert (clean.stage.earlier_stages, clean.stage.values, clean.stage.version) == (
        {"raw": "state/raw/1-a"},
        {"count": 7},
        "2",
    )
    seal = Seal.from_bytes(golden("seal"))
    assert seal.applications == {"": ack}
    assert (seal.inc, seal.job, seal.scope, seal.item) == (
        "1ncarnation",
        "flights.delays",
        "scheduled__2026-11-20",
        None,
    )
    assert (seal.id, seal.kind, seal.branch, seal.epochs, seal.plan) == (2, "checkpoint", 0, (1,), ("",))
    assert [(state.uid, state.kind, state.rows, state.bytes) for state in seal.states.values()] == [
        ("clean", "stage", 14, 38),
        ("Größe", "value", 0, 0),
    ]


def test_heartbeat_is_read() -> None:
    beat = Beat.from_json(json.loads(golden("heartbeat")))
    assert (beat.counter, beat.at, beat.process, beat.epoch, beat.launch) == (41, at(3), PROCESS, 2, 3)
    assert (beat.activity, beat.fraction, beat.reused, beat.computed) == ("stage 'joined'", 0.61, ("clean",), ("raw",))
    assert beat.refusal == RefusedStart(code="CKP131", text="another driver is alive")


def test_queries_of_a_heartbeat_are_read() -> None:
    assert Beat.from_json(json.loads(golden("heartbeat-queries"))).queries == QUERIES


def test_offsets_of_kafka_are_read() -> None:
    assert Beat.from_json(json.loads(golden("heartbeat-kafka"))).earliest == (KAFKA,)
    ((event,),) = json.loads(golden("events-kafka"))
    assert e.event_from_json(event) == completed_behind_kafka()


@pytest.mark.parametrize(
    "hurt", [{"input_rate": -1.0}, {"batch": -2}, {"state_rows": -1}, {"ended_at": "soon"}, {"uid": "a\nb"}]
)
def test_damaged_progress_of_a_query_is_refused(hurt: dict[str, object]) -> None:
    with pytest.raises(Damaged):
        QueryProgress.from_json(QUERIES[0].to_json() | hurt)


def test_markers_beside_a_savepoint_are_read() -> None:
    claimed, stub = (json.loads(golden(f"savepoint-{name}")) for name in ("claimed", "stub"))
    assert ClaimLock.from_json(claimed) == ClaimLock(owner="1ncarnation", by="orders, task restore", at=at(4))
    assert DisposedStub.from_json(stub) == DisposedStub(by="task savepoint", at=at(5), stub=True)


@pytest.mark.parametrize("name", sorted(name for name in WRITERS if not name.startswith("events")))
def test_golden_file_has_its_version_and_no_secret(name: str) -> None:
    data = json.loads(golden(name))
    assert data["v"] == 1
    assert not {"password", "login", "secret", "token_secret", "credentials"} & set(fields(data))
