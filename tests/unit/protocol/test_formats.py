"""Golden files of format version 1: every later version reads them (docs/inside/formats.md). Runs anywhere.

This module writes missing files with ``WRITE_GOLDEN_FILES=1`` and never overwrites one. A later format gets its own files.
A golden file that must be rewritten means that stored data can no longer be read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress, RefusedStart
from airflow_checkpoint_provider.coordinator.savepoint_target import ClaimLock, DisposedStub
from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.metadata import (
    Acknowledgement,
    Measures,
    Seal,
    StateSnapshot,
    digest_of_stages,
)
from airflow_checkpoint_provider.protocol.state import Closing, State
from airflow_checkpoint_provider.protocol.transitions import fold
from tests.support import query_lives
from tests.support.acknowledgements import file_set
from tests.support.histories import at
from tests.unit.protocol.golden_files import (
    BOUNDARY,
    GOLDEN,
    KAFKA,
    LOSS_ALLOWED,
    PROCESS,
    QUERIES,
    QUERIES_BOUNDARY,
    SAVEPOINTS_BOUNDARY,
    VERSIONS,
    WRITERS,
    completed_behind_kafka,
    golden,
    rewritten,
)
from tests.unit.protocol.golden_states import (
    with_files,
    with_footers,
    with_keyed,
    with_loops,
    with_metrics,
    with_parts,
    with_sinks,
)


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
    assert rewritten(name) == golden(name)


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
    assert (entry.snapshot.n, entry.snapshot.closing) == (4, Closing(reason="the run finished"))
    assert stub.closed == fold(entry.snapshot, entry.n, entry.at, entry.events)
    assert stub.closed == State(
        n=64, at=at(5), incarnation="1ncarnation", job="flights.delays", scope="scheduled__2026-11-20",
        next_launch=2, next_id=2, last_epoch=1, closing=Closing(reason="the run finished", done=True),
    )  # fmt: skip


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
    assert state == snapshot


def test_boundary_holds_the_entries_that_ended_its_checkpoints() -> None:
    snapshot = Entry.from_bytes(golden("entry-boundary"), "a boundary").snapshot
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
    assert (waited.request.token, waited.request.owner) == ("two", "ops.checkpoint")
    assert waited.queued_at


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
    assert Acknowledgement.from_bytes(golden("acknowledgement-apart")) == query_lives.chained(apart=True)


def test_stage_has_the_metrics_of_its_observations() -> None:
    assert Acknowledgement.from_bytes(golden("acknowledgement-metrics")) == with_metrics()


def test_folder_of_files_and_sink_are_read_as_they_were_written() -> None:
    assert Acknowledgement.from_bytes(golden("acknowledgement-files")) == with_files()
    assert Acknowledgement.from_bytes(golden("acknowledgement-sinks")) == with_sinks()


def test_loops_and_their_frame_are_read_as_they_were_written() -> None:
    assert Acknowledgement.from_bytes(golden("acknowledgement-loops")) == with_loops()
    assert Acknowledgement.from_bytes(golden("acknowledgement-keyed")) == with_keyed()


def test_stage_in_parts_has_a_file_set_for_each_part_that_is_done() -> None:
    ack = Acknowledgement.from_bytes(golden("acknowledgement-parts"))
    assert ack == with_parts()
    days, shops = ack.states
    assert [str(state.entry.parts) for state in (days, shops)] == ["1 of 3 parts", "2 of 2 parts"]
    assert days.parts
    for wrong in (
        replace(days, file_sets=()),
        replace(days, file_sets=shops.file_sets),
        replace(days, stage=None),
        replace(days, parts=None),
    ):
        with pytest.raises(Damaged):
            StateSnapshot.from_json(wrong.to_json())


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
    assert (clean.stage.earlier_stages, clean.stage.stage_before, clean.stage.values, clean.stage.version) == (
        digest_of_stages(["state/raw/1-a"]),
        "raw",
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
    assert Beat.from_json(json.loads(golden("heartbeat-loss-allowed"))).earliest == (LOSS_ALLOWED,)
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
    assert ClaimLock.from_json(claimed) == ClaimLock(
        owner="s3://lake/checkpoints/jobs/orders/job", by="orders, task restore", at=at(4)
    )
    assert DisposedStub.from_json(stub) == DisposedStub(by="task savepoint", at=at(5), stub=True)


@pytest.mark.parametrize("name", sorted(name for name in WRITERS if not name.startswith("events")))
def test_golden_file_has_its_version_and_no_secret(name: str) -> None:
    data = json.loads(golden(name))
    assert data["v"] == 1
    assert not {"password", "login", "secret", "token_secret", "credentials"} & set(fields(data))
