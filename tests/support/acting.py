"""A job without Spark: what submit task and driver write into the journal and the store. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat, Process
from airflow_checkpoint_provider.coordinator.restore import stored_at
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import LaunchSpec, Request, Token
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import Store
from tests.support.acknowledgements import ROWS, acknowledgement, stage, value
from tests.support.acknowledgements import file_set as file_set_of
from tests.support.waiting import wait_until

RUN = "manual__1"


class Job:
    """One history and its newest driver. ``scope`` is None for the job scope."""

    def __init__(self, store: Store, job: str = "orders", scope: str | None = None, item: str | None = None) -> None:
        self.store, self.job, self.scope, self.item = store, job, scope, item
        self.incarnation = f"of {job}"
        self.keys = Keys(History(job, scope, item).prefix)
        self.coordinator = Coordinator(Journal(store, self.keys, By("test", job, "here")))

    @property
    def state(self) -> State:
        return self.coordinator.journal.catch_up()

    def checkpoint(self, number: int) -> Checkpoint:
        found = self.state.checkpoint(number)
        assert found
        return found

    def start(self, try_number: int = 1, generation: int = 0, run: str = RUN, **checkpointing: Any) -> None:
        """A launch, and its driver attaches."""
        asks = self.plan(try_number, generation, run)
        config = CheckpointConfig(**checkpointing).to_json()
        self.coordinator.journal.append(
            c.StartAttempt(token=asks, try_number=try_number, driver=f"{try_number}", checkpointing=config)
        )
        self.coordinator.epoch = self.state.last_epoch

    def plan(self, try_number: int = 1, generation: int = 0, run: str = RUN) -> Token:
        """A launch, whose driver has not attached yet."""
        asks = Token(dag="etl", run=run, task="job", item=self.item, generation=generation)
        self.coordinator.journal.append(
            c.PlanLaunch(
                spec=LaunchSpec(
                    token=asks,
                    try_number=try_number,
                    owner=asks.owner,
                    run=run,
                    run_after=None,
                    started_at="2026-11-20T00:00:00Z",
                ),
                job=self.job,
                incarnation=self.incarnation,
                scope=self.scope or "",
                item=self.item,
            )
        )
        return asks

    def beat_launch(self, process: Process | None = None) -> None:
        """One of the task that submits the newest launch; by default it is this process, which lives as long as the test."""
        number = self.state.launches[-1].number
        heart = Heart(self.store, self.keys.launch_beat(number), Beat(launch=number))
        heart.update(lambda beat: replace(beat, process=process or beat.process))
        heart.pulse()

    def attach(self) -> None:
        """The driver of the newest launch attaches."""
        spec = self.state.launches[-1].spec
        start = c.StartAttempt(token=spec.token, try_number=spec.try_number, driver=f"{spec.try_number}")
        self.coordinator.journal.append(start)
        self.coordinator.epoch = self.state.last_epoch

    def beat(self, process: Process | None = None) -> None:
        """One of the newest driver; by default it is this process, which lives as long as the test."""
        heart = Heart(self.store, self.keys.attempt_beat(self.state.last_epoch), Beat(epoch=self.state.last_epoch))
        heart.update(lambda beat: replace(beat, process=process or beat.process))
        heart.pulse()

    def acknowledge(self, number: int, *more: StateSnapshot, rows: Any = 7) -> None:
        """As the driver does at its barrier: a stage of two files, of a savepoint at its target, a value, and ``more``."""
        epoch = self.coordinator.epoch or 0
        made_of = file_set_of("clean", epoch, f"nonce{number}")
        store, keys = stored_at(self.coordinator, self.checkpoint(number))
        for file in made_of.files:
            store.create(f"{keys.file_set(made_of.path)}/{file.name}", ROWS)
        states = (stage("clean", number, made_of=made_of), value("rows", number, rows), *more)
        ack = acknowledgement(number, *states, epoch=epoch, inc=self.state.incarnation, nonce=f"nonce {number}")
        self.coordinator.acknowledge(ack)

    def complete(self, number: int, *more: StateSnapshot) -> None:
        """As the driver does, which then tells the participants."""
        self.acknowledge(number, *more)
        self.coordinator.complete(number)
        if self.checkpoint(number).request.confirm_commits:
            self.coordinator.confirm_commits(number)

    def confirm(self, number: int, patience_s: float) -> None:
        """Confirm the commits of a gated checkpoint when its task has finalized it, as the driver's watch does."""
        wait_until(lambda: self.checkpoint(number).completed_at, patience_s, f"nobody finalizes chk-{number}")
        self.coordinator.confirm_commits(number)

    def take(self) -> int:
        """Take a checkpoint as at a barrier. Return its id."""
        number = self.coordinator.trigger(Request(token=f"barrier {len(self.state.checkpoints)}"))
        self.complete(number)
        return number

    def save(self) -> int:
        """Take a savepoint, and publish it. Return its id."""
        asks = Request(
            token=f"save {len(self.state.checkpoints)}",
            kind="savepoint",
            origin="task",
            folder=f"{self.store.uri}/savepoints",
        )
        number = self.coordinator.trigger(asks)
        self.complete(number)
        publish_due(self.coordinator)
        return number

    def serve(self, number: int) -> None:
        """Complete it as soon as somebody has asked for it."""
        self.wait_asked(number)
        self.complete(number)

    def wait_asked(self, number: int) -> None:
        wait_until(lambda: self.state.checkpoint(number), say=f"nobody asks for chk-{number}", every=0.02)

    def abort(self, number: int, reason: str = "expired", details: str = "") -> None:
        self.coordinator.abort(number, reason, details=details)

    def end(self, how: str = "finished") -> None:
        self.coordinator.journal.append(
            c.EndAttempt(epoch=self.state.last_epoch, outcome=how, exit_code=0 if how == "finished" else 1)
        )
