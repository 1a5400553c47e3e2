"""What the golden files of format version 1 hold, and how they are written. Runs anywhere.

Each is a part of a history that is the same in each run, or a single record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By, Entry, closed_stub
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat, EarliestOffsets, Process, QueryProgress, RefusedStart
from airflow_checkpoint_provider.coordinator.savepoint_target import ClaimLock, DisposedStub
from airflow_checkpoint_provider.errors import Queued
from airflow_checkpoint_provider.file_sink.rewinding import Manifest, RewoundFile
from airflow_checkpoint_provider.policies.retention import KeepLatest, KeepWithin
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.keys import SEGMENT, History, Keys
from airflow_checkpoint_provider.protocol.metadata import (
    Acknowledgement,
    Measures,
    Seal,
    StageDetail,
    StateEntry,
    Versions,
    digest_of_stages,
)
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.transitions import fold
from airflow_checkpoint_provider.sinks.log import BEGIN, LogEntry, RunOfSink
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support import query_lives
from tests.support.acknowledgements import acknowledgement, file_set, stage, value
from tests.support.garbage import retire
from tests.support.histories import at, clear, launch, start
from tests.unit.protocol.golden_states import (
    with_files,
    with_footers,
    with_keyed,
    with_loops,
    with_metrics,
    with_parts,
    with_sinks,
)

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
        function=True, earlier_stages=digest_of_stages(["state/raw/1-a"]), stage_before="raw", values={"count": 7},
    )  # fmt: skip
    measures = Measures(checkpoint=1, barrier="stage 'clean'", work_s=4320.5, sync_s=0.25, new_bytes=38)
    return acknowledgement(
        number,
        replace(clean, stage=detail, measures=measures),
        value("Größe", number, {"rows": 7, "deep": [1, None, True, 2.5, "ü"]}),
        run="scheduled__2026-11-20", run_values={"count": 0}, versions=VERSIONS,
    )  # fmt: skip


def begun(incarnation: str = "") -> LogEntry:
    """Return the first entry in the log of a sink. The first version noted no ``incarnation``."""
    folder = "s3://lake/checkpoints/jobs/orders/job"
    by = RunOfSink(history=folder, run="day-1", uid="report", incarnation=incarnation)
    return LogEntry(kind=BEGIN, by=by, added=(File(name="part-0.parquet", bytes=7, rows=0),))


def taken_out() -> Manifest:
    """Return the manifest of what a query has taken out of its sink."""
    return Manifest(
        job="orders", uid="rows", batch=4, number=29, at=at(4), by="the driver of orders", entries=("9.compact", "10"),
        files=(RewoundFile(name="day=2026-11-20/part-0.parquet", bytes=5120),),
    )  # fmt: skip


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
    retire(coordinator, at(20_000))
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


MEMORY_BOUNDARY = 6


@cache
def with_memory() -> MemoryStore:
    """Return entries 0 to 6: a driver dies of memory and its task adds that, and one dies of it before it attached."""
    store = MemoryStore()
    run = "scheduled__2026-11-20"
    journal = repeatable(store, MEMORY_BOUNDARY)

    def planned(try_number: int, heap: str) -> c.PlanLaunch:
        plan = launch(run, try_number, scope=run, run_after="2026-11-20T00:00:00Z")
        return replace(plan, spec=replace(plan.spec, memory={"spark.driver.memory": heap}))

    journal.append(planned(1, "2g"))
    journal.append(start(run, driver="dr1ver1"))
    journal.append(c.EndAttempt(epoch=1, outcome="failed", exit_code=1))
    died = {"outcome": "failed", "exit_code": 52, "cause": "driver_heap"}
    journal.append(c.EndAttempt(epoch=1, reported_by="task", from_task=True, **died))  # type: ignore[arg-type]
    journal.append(planned(2, "3g"))
    journal.append(c.EndLaunch(launch=2, try_number=2, **died))  # type: ignore[arg-type]
    journal.append(planned(3, "4608m"))
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
LOSS_ALLOWED = replace(KAFKA, loss_allowed=("0",))


def completed_behind_kafka() -> e.CheckpointCompleted:
    """Return the event of a checkpoint of a query that reads Kafka."""
    offsets = {"0": '{"orders":{"0":120,"1":7}}'}
    orders = StateEntry(uid="orders", kind="query", run="run", batch=412, sources=offsets)
    return e.CheckpointCompleted(id=7, digest="d1gest", metadata_bytes=9, bytes=41, states=(orders,))


def at_a_barrier() -> Acknowledgement:
    """Return the acknowledgement of a checkpoint at a barrier."""
    return replace(Acknowledgement.from_bytes(golden("acknowledgement")), barrier="part 3 of 6 of stage 'scores'")


def with_loops_of(**fields: Any) -> Acknowledgement:
    """Return the acknowledgement of loops that have these fields, too."""
    ack = Acknowledgement.from_bytes(golden("acknowledgement-loops"))
    states = (replace(state, loop=replace(state.loop, **fields)) if state.loop else state for state in ack.states)
    return replace(ack, states=tuple(states))


def with_captured() -> Acknowledgement:
    """Return the acknowledgement of a sink whose writes have Python functions with values."""
    ack = Acknowledgement.from_bytes(golden("acknowledgement-sinks"))
    (state,) = ack.states
    assert state.sink
    written = tuple(
        replace(one, origin=replace(one.origin, captured={"rate": "d1gest"})) for one in state.sink.transactions
    )
    return replace(ack, states=(replace(state, sink=replace(state.sink, transactions=written)),))


def with_captured_in_parts() -> Acknowledgement:
    """Return the acknowledgement of a stage in parts whose Python functions hold values."""
    days, _ = with_parts().states
    assert days.parts
    done = tuple(replace(part, captured="d1gest") for part in days.parts.done)
    return replace(with_parts(), states=(replace(days, parts=replace(days.parts, done=done)),))


def with_options() -> Acknowledgement:
    """Return the acknowledgement of a sink whose writes know its options."""
    ack = Acknowledgement.from_bytes(golden("acknowledgement-sinks"))
    (state,) = ack.states
    assert state.sink
    written = tuple(replace(one, origin=replace(one.origin, options="0pt1ons")) for one in state.sink.transactions)
    return replace(ack, states=(replace(state, sink=replace(state.sink, transactions=written)),))


def with_removal() -> Acknowledgement:
    """Return the acknowledgement of a sink whose newest transaction only takes rows out."""
    ack = Acknowledgement.from_bytes(golden("acknowledgement-sinks"))
    (state,) = ack.states
    assert state.sink
    *others, last = state.sink.transactions
    made = (*others, replace(last, removes=True, rows=0, replaces=("1-00000000000000fe",)))
    return replace(ack, states=(replace(state, sink=replace(state.sink, transactions=made)),))


def completed_at_a_barrier() -> e.CheckpointCompleted:
    """Return the event of a checkpoint at a barrier."""
    barrier = at_a_barrier().barrier
    return e.CheckpointCompleted(id=7, digest="d1gest", metadata_bytes=9, bytes=0, states=(), barrier=barrier)


def planned_through_a_connection() -> e.LaunchPlanned:
    """Return the event of a launch whose task names a connection."""
    spec = replace(launch("scheduled__2026-11-20").spec, connection="checkpoints_of_team_a")
    return e.LaunchPlanned(launch=1, spec=spec, restore_point=None)


def located_further() -> e.QueryLocated:
    """Return the event of a location that begins with batches of the launch before."""
    return e.QueryLocated(
        uid="orders", path="query/orders/2-n0nce", taken_from="query/orders/1-n0nce", begun=8, committed=7, further=1
    )


def stub() -> bytes:
    names = {"job": "flights.delays", "scope": "scheduled__2026-11-20", "item": None}
    return Entry(inc="1ncarnation", n=0, nonce="", at="", by={}, events=(), stub=True, extra=names).to_bytes()


WRITERS: dict[str, Callable[[], bytes]] = {
    "entry-0": lambda: lived().objects[KEYS.entry(0)],
    "entry-boundary": lambda: lived().objects[KEYS.entry(BOUNDARY)],
    "entry-boundary-savepoints": lambda: with_savepoints().objects[KEYS.entry(SAVEPOINTS_BOUNDARY)],
    "entry-boundary-application": lambda: with_applications().objects[KEYS.entry(APPLICATION_BOUNDARY)],
    "entry-boundary-launch-end": lambda: with_launch_end().objects[KEYS.entry(LAUNCH_END_BOUNDARY)],
    "entry-launch-end": lambda: with_launch_end().objects[KEYS.entry(1)],
    "entry-boundary-memory": lambda: with_memory().objects[KEYS.entry(MEMORY_BOUNDARY)],
    "events-memory": lambda: canonical(
        [json.loads(with_memory().objects[KEYS.entry(n)])["events"] for n in range(MEMORY_BOUNDARY + 1)]
    ),
    "events-savepoints": lambda: canonical(
        [json.loads(with_savepoints().objects[KEYS.entry(n)])["events"] for n in range(SAVEPOINTS_BOUNDARY + 1)]
    ),
    "entry-boundary-queries": lambda: with_queries().objects[KEYS.entry(QUERIES_BOUNDARY)],
    "events-queries": lambda: canonical(
        [json.loads(with_queries().objects[KEYS.entry(n)])["events"] for n in range(QUERIES_BOUNDARY + 1)]
    ),
    "acknowledgement-query": lambda: with_queries().objects[KEYS.acknowledgement(1, "")],
    "acknowledgement-edges": lambda: query_lives.chained().to_bytes(),
    "acknowledgement-apart": lambda: query_lives.chained(apart=True).to_bytes(),
    "entry-stub": stub,
    "acknowledgement": lambda: lived().objects[KEYS.acknowledgement(2, "")],
    "acknowledgement-footers": lambda: with_footers().to_bytes(),
    "acknowledgement-metrics": lambda: with_metrics().to_bytes(),
    "acknowledgement-files": lambda: with_files().to_bytes(),
    "acknowledgement-sinks": lambda: with_sinks().to_bytes(),
    "acknowledgement-loops": lambda: with_loops().to_bytes(),
    "acknowledgement-keyed": lambda: with_keyed().to_bytes(),
    "acknowledgement-parts": lambda: with_parts().to_bytes(),
    "acknowledgement-barrier": lambda: at_a_barrier().to_bytes(),
    "acknowledgement-opened": lambda: with_loops_of(opened=("seen-1",)).to_bytes(),
    "acknowledgement-broken-off": lambda: with_loops_of(broken_off="clean").to_bytes(),
    "acknowledgement-reopened": lambda: with_loops_of(reopened=("mon", ["tue", 1])).to_bytes(),
    "acknowledgement-used": lambda: with_loops_of(used=("days", "ranks", "seen-1")).to_bytes(),
    "acknowledgement-captured": lambda: with_captured().to_bytes(),
    "acknowledgement-captured-parts": lambda: with_captured_in_parts().to_bytes(),
    "acknowledgement-options": lambda: with_options().to_bytes(),
    "acknowledgement-removal": lambda: with_removal().to_bytes(),
    "seal": lambda: lived().objects[KEYS.seal(2)],
    "heartbeat": heartbeat,
    "heartbeat-queries": lambda: canonical(Beat(counter=41, at=at(3), epoch=2, queries=QUERIES).to_json()),
    "heartbeat-kafka": lambda: canonical(Beat(counter=41, at=at(3), epoch=2, earliest=(KAFKA,)).to_json()),
    "heartbeat-loss-allowed": lambda: canonical(
        Beat(counter=41, at=at(3), epoch=2, earliest=(LOSS_ALLOWED,)).to_json()
    ),
    "events-barrier": lambda: canonical([[completed_at_a_barrier().to_json()]]),
    "events-connection": lambda: canonical([[planned_through_a_connection().to_json()]]),
    "events-further": lambda: canonical([[located_further().to_json()]]),
    "events-kafka": lambda: canonical([[completed_behind_kafka().to_json()]]),
    "savepoint-claimed": lambda: canonical(
        ClaimLock(owner="s3://lake/checkpoints/jobs/orders/job", by="orders, task restore", at=at(4)).to_json()
    ),
    "savepoint-claimed-incarnation": lambda: canonical(
        ClaimLock(
            owner="file:///data/jobs/orders/job", by="orders, task restore", at=at(4), incarnation="1ncarnation"
        ).to_json()
    ),
    "savepoint-stub": lambda: canonical(DisposedStub(by="task savepoint", at=at(5)).to_json()),
    "sink-manifest": lambda: canonical(taken_out().to_json()),
    "sink-begin": lambda: canonical(begun().to_json()),
    "sink-begin-incarnation": lambda: canonical(begun("1ncarnation").to_json()),
    "entry-closing": lambda: closed().objects[KEYS.entry(4)],
    "entry-closed": lambda: closed().objects[KEYS.entry(64)],
    "entry-closed-stub": lambda: closed_stub_of(closed().objects[KEYS.entry(64)]),
    "events": lambda: canonical([json.loads(lived().objects[KEYS.entry(n)])["events"] for n in range(BOUNDARY + 1)]),
}


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes().removesuffix(b"\n")


def rewritten(name: str) -> bytes:
    """Read a golden file, and write what was read."""
    return REWRITERS[name if name in REWRITERS else name.partition("-")[0]](golden(name))


REWRITERS: dict[str, Callable[[bytes], bytes]] = {
    "entry": lambda body: Entry.from_bytes(body, "an entry").to_bytes(),
    "events": lambda body: canonical(
        [[e.event_from_json(event).to_json() for event in entry] for entry in json.loads(body)]
    ),
    "acknowledgement": lambda body: Acknowledgement.from_bytes(body).to_bytes(),
    "seal": lambda body: Seal.from_bytes(body).to_bytes(),
    "heartbeat": lambda body: canonical(Beat.from_json(json.loads(body)).to_json()),
    **dict.fromkeys(
        ("savepoint-claimed", "savepoint-claimed-incarnation"),
        lambda body: canonical(ClaimLock.from_json(json.loads(body)).to_json()),
    ),
    "savepoint-stub": lambda body: canonical(DisposedStub.from_json(json.loads(body)).to_json()),
    "sink-manifest": lambda body: canonical(Manifest.from_json(json.loads(body)).to_json()),
    **dict.fromkeys(
        ("sink-begin", "sink-begin-incarnation"),
        lambda body: canonical(LogEntry.from_json(json.loads(body)).to_json()),
    ),
}
"""By the name of the file, or by the first word of it."""
