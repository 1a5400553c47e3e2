"""A driver without Spark: it sends heartbeats and completes the checkpoints that its journal requests. Runs anywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.coordinator.savepoint import publish_due, target_of
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import kind_named
from tests.support.acknowledgements import ROWS, acknowledgement, file_set, stage
from tests.support.acting import Job

LIVES = 30  # seconds after which a driver that nobody has ended ends by itself


class Habits(NamedTuple):
    """What the driver does besides completing pending checkpoints."""

    beats: bool = True
    publishes: bool = True
    ends: bool = True
    aborts: str = ""


DILIGENT = Habits()


def take(job: Job, number: int) -> None:
    """Complete a checkpoint. A savepoint gets its files at its target."""
    checkpoint = job.checkpoint(number)
    if not checkpoint.savepoint:
        return job.complete(number)
    pointer = target_of(checkpoint)
    made_of = file_set("clean", job.coordinator.epoch or 1, f"nonce{number}")
    store = job.store.beside(pointer.root)
    for file in made_of.files:
        store.create(f"{pointer.keys.file_set(made_of.path)}/{file.name}", ROWS)
    states = [stage("clean", number, made_of=made_of)]
    ack = acknowledgement(number, *states, epoch=job.coordinator.epoch or 1, inc=job.state.incarnation)
    job.coordinator.acknowledge(ack)
    job.coordinator.complete(number)
    return None


def savepoint(job: Job, *, publish: bool = True, **options: Any) -> Checkpoint:
    """Request a savepoint, complete it, and return it."""
    asked = {"kind": "savepoint", "origin": "cli", "folder": f"{job.store.uri}/savepoints", **options}
    number = job.coordinator.trigger(Request(token=f"request {job.state.next_id}", **asked))
    take(job, number)
    if publish:
        publish_due(job.coordinator)
    return job.checkpoint(number)


def _serve(job: Job, habits: Habits, over: Callable[[], bool]) -> None:
    """Complete or abort pending checkpoints until ``over``; runs in its own thread with its own journal."""
    own = Job(job.store, job.job, job.scope)
    own.coordinator = Coordinator(Journal(job.store, job.keys, By("driver", "", "here")), job.state.last_epoch)
    while not over():
        for pending in own.state.pending:
            if habits.aborts:
                own.abort(pending.id, habits.aborts, details="the driver said no")
                continue
            take(own, pending.id)
            if habits.publishes:
                publish_due(own.coordinator)
            if habits.ends and kind_named(pending.kind).suspends:
                return own.end("suspended")
        time.sleep(0.01)
    return None


@contextmanager
def serving(job: Job, habits: Habits = DILIGENT) -> Iterator[None]:
    """Run a driver of the newest attempt."""
    done, end = threading.Event(), time.monotonic() + LIVES
    thread = threading.Thread(target=_serve, args=(job, habits, lambda: done.is_set() or time.monotonic() > end))
    heart = Heart(job.store, job.keys.attempt_beat(job.state.last_epoch), Beat(epoch=1, activity="stage 'clean'"))
    with heart if habits.beats else nullcontext():
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(LIVES)
