"""Texts and decisions on states that can be read, but that no decision allowed: typed errors only, and lines. Runs anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from airflow_checkpoint_provider.cli import lists, show
from airflow_checkpoint_provider.coordinator import garbage, statistics
from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.coordinator.restore import Restored, candidates_at_start
from airflow_checkpoint_provider.errors import CheckpointError, printable
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import decisions, lifetime
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint, Completion
from airflow_checkpoint_provider.protocol.deletion import policy_of
from airflow_checkpoint_provider.protocol.events import LaunchSpec, Point, Request, Token
from airflow_checkpoint_provider.protocol.keys import SEGMENT, Keys
from airflow_checkpoint_provider.protocol.metadata import Seal, StateEntry
from airflow_checkpoint_provider.protocol.records import canonical, parse
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import fold
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.storage import MemoryStore
from airflow_checkpoint_provider.text import (
    launch_messages,
    manual_restore,
    messages,
    query_progress,
    replay,
    restore_story,
    state_messages,
    summary_table,
)
from airflow_checkpoint_provider.text.job_list import job_line
from tests.fuzz import lake
from tests.fuzz.mutations import STORED, attack, hurt, short_and_long

NOW, KEYS = "2026-11-23T10:00:00.000Z", Keys("jobs/orders/job")
NOWHERE = MemoryStore("nowhere")
QUOTED = 500  # times that all texts about one state may hold what is stored of it
FOLDERS = (
    "state/clean/1-nonce1",
    "state/clean/99999999999999999999-x",
    "state/x",
    "chk-1",
    "chk-0",
    "chk-00",
    "journal",
)


def is_line(line: str) -> bool:
    """Return whether a line of a text can be printed as it is."""
    return line.isprintable()


# An error and the command line make what they say printable; a log does not.


def of_checkpoint(state: State, checkpoint: Checkpoint) -> Iterator[str]:
    yield messages.triggered(state, checkpoint, KEYS.pointer("memory://x", checkpoint.id))
    yield messages.acknowledged(state, checkpoint)
    yield printable(messages.will_not_complete(state, checkpoint))
    yield messages.checkpoint_line(checkpoint, 1.5)
    yield messages.gate_reached(checkpoint)
    yield messages.gates_awaited([checkpoint])
    yield from messages.checkpoint_lines(state, checkpoint)
    yield from messages.aborted(state, checkpoint)
    yield messages.outcome_known(checkpoint)
    yield messages.savepoint(checkpoint)
    yield messages.savepoint_line(checkpoint)
    yield messages.not_known(checkpoint, "x")
    yield messages.goes_on(state, checkpoint)
    yield messages.stopped(state, checkpoint, checkpoint.request.barrier)
    yield printable(messages.not_stopped(state, checkpoint, "x"))
    yield printable(messages.ended_after_stop(state, checkpoint, "failed"))


def of_state(state: State) -> Iterator[str]:
    for checkpoint in state.checkpoints:
        yield from of_checkpoint(state, checkpoint)
    for launch in state.launches:
        attempt = state.attempt_of(launch.number)
        yield from restore_story.retold(state, launch, attempt)
        yield from restore_story.launch_story(state, state, launch, candidates_at_start(state, launch, None))
    for attempt in state.attempts:
        if its_launch := state.launch(attempt.launch):
            yield from restore_story.retold(state, its_launch, attempt)
        yield from restore_story.cleared_unchanged(state, attempt.epoch)
        yield from messages.fenced(state, attempt.epoch, "now")
        for run in state.runs:
            yield state_messages.application_line("d", {"a": "b"}, attempt, run)
    for run in state.runs:
        yield from summary_table.summary(state, run.key)
        yield from launch_messages.finished(state, run.key)
        yield printable(launch_messages.superseded(state, run.key))
    for point in (None, state.restore_point(), Point(id=1), state.branch.base):
        yield from manual_restore.restored(state, Restored(point), claim=True, rename={"a": "b"})
    yield printable(manual_restore.left_by_restore(state))
    yield from map(printable, summary_table.statistics(state, statistics.checkpoints(state)))
    yield printable(messages.nothing_to_stop(state))
    yield printable(messages.queries_have_run(state, "file:///saved", [query.uid for query in state.queries]))
    yield from launch_messages.suspended(state)
    if state.closing:
        yield messages.closed(state, state.closing)
    yield restore_story.waits_for_heartbeat(state, 3.0)


def of_command_line(state: State) -> Iterator[Any]:
    found = FoundHistory(KEYS, state)
    yield lists._job_cells(job_line(found, NOW, silent=True))
    for checkpoint in state.checkpoints:
        data = lists.entry(NOWHERE, found, checkpoint)
        yield lists._list_cells(data), data
        yield show._one(NOWHERE, found, str(checkpoint.id))
    for run in state.runs:
        yield show._table(NOWHERE, found, run.key, NOW)


def decide(state: State) -> None:
    """Take every decision that needs no more than a state."""
    due = garbage.plan(state, NOW, FOLDERS)
    garbage.folders_to_delete(state, due, NOW)
    lifetime.outlived(state, policy_of(state), datetime.fromisoformat(NOW))
    token = Token(dag="etl", run="manual__1", task="job", generation=3)
    spec = LaunchSpec(token=token, try_number=1, owner=token.owner, run="manual__1", run_after=NOW, started_at=NOW)
    commands: list[c.Command] = [
        c.PlanLaunch(spec=spec, job=state.job, scope=state.scope, incarnation="i"),
        c.StartAttempt(token=token, try_number=1, driver="d"),
        c.CloseHistory(reason="x", now=NOW),
        c.FinishClosing(),
        c.Restore(token=token, base=state.restore_point(), by="x", reason="x"),
        *(c.EndAttempt(epoch=attempt.epoch, outcome="failed") for attempt in state.attempts),
        *(c.Forget(ids=(checkpoint.id,)) for checkpoint in state.checkpoints),
        *(c.Condemn(ids=(checkpoint.id,), now=NOW) for checkpoint in state.checkpoints),
        *(c.Abort(id=checkpoint.id, reason="expired") for checkpoint in state.checkpoints),
    ]
    for command in commands:
        decided = decisions.decide(state, command)
        if isinstance(decided, tuple):
            fold(state, state.n + 1, NOW, decided)


def states() -> list[bytes]:
    """Return the boundaries that hold a state: of the golden files, and of the store."""
    boundaries = [body for name, body in STORED.items() if "boundary" in name or "closed" in name]
    return [*boundaries, *(lake.compacted()[keys.entry(SEGMENT)] for keys in lake.HISTORIES)]


def read(body: bytes) -> State | None:
    try:
        entry = Entry.from_bytes(body, "an entry")
        return entry.closed or fold(entry.snapshot or State(), entry.n, entry.at, entry.events)
    except CheckpointError:
        return None


def attack_state(seed: str) -> None:
    chance = random.Random(seed)
    bodies = states()
    state = None
    while state is None:
        body = hurt(chance.choice(bodies), chance, bodies)
        state = read(body)
    lines = list(of_state(state))
    assert sum(map(len, lines)) < QUOTED * len(body)
    assert all(map(is_line, lines))
    canonical(statistics.checkpoints(state))
    list(of_command_line(state))
    decide(state)


def attack_seal(seed: str) -> None:
    chance = random.Random(seed)
    others = list(STORED.values())
    try:
        seal = Seal.from_bytes(hurt(STORED["seal"], chance, others))
    except CheckpointError:
        return
    states = States.restored(seal, "scheduled__2026-11-20")
    for uid, snapshot in states.snapshots.items():
        if snapshot.kind == "stage" and snapshot.stage and states.stage(uid):
            state_messages.stage_reused(snapshot)
            for value in snapshot.stage.values.values():
                state_messages.value_differs(uid, None, value, uid, 1, "")
            state_messages.metrics_missing(uid, ", ".join(one.name for one in snapshot.stage.metrics), "why")
            states.replay_values(snapshot.stage, "another application")
            states.hand_out(snapshot)
        elif snapshot.kind == "value":
            states.claim_value(uid)
        elif snapshot.kind == "registered":
            states.register(uid)
    unclaimed = states.unclaimed()
    state_messages.handed_on(unclaimed)
    state_messages.left_behind(unclaimed)
    states.unclaimed_of_earlier_runs()


READS_KAFKA = Checkpoint(
    id=1, epochs=(1,), branch=0, plan=("",), request=Request(token="t"), timeout_s=1.0, triggered_at="2026-11-20T00:00:00Z",
    completion=Completion(
        at="2026-11-20T00:00:00Z", n=2, digest="d", bytes=0, metadata_bytes=9,
        states=(StateEntry(uid="orders", kind="query", run="", sources={"0": '{"orders":{"0":120}}'}),),
    ),
)  # fmt: skip


def attack_beat(seed: str) -> None:
    chance = random.Random(seed)
    try:
        stored = STORED[chance.choice(["heartbeat", "heartbeat-queries", "heartbeat-kafka"])]
        beat = Beat.from_json(parse(hurt(stored, chance, list(STORED.values())), "a beat"))
    except CheckpointError:
        return
    restore_story.driver_says(beat)
    restore_story.doing(beat)
    query_progress.report(beat, 1.0)
    replay.lines(READS_KAFKA, beat.earliest)
    beat.process.lives()


@short_and_long(130, 6_000)
def test_texts_and_decisions_about_hurt_states_fail_by_typed_errors(inputs: int) -> None:
    attack(attack_state, "state", inputs)


@short_and_long(300, 50_000)
def test_states_of_hurt_seals_fail_by_typed_errors(inputs: int) -> None:
    attack(attack_seal, "seal", inputs)


@short_and_long(300, 50_000)
def test_hurt_heartbeats_fail_by_typed_errors(inputs: int) -> None:
    attack(attack_beat, "beat", inputs)
