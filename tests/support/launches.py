"""Launches of one run of a job, planned as a submit task plans them, without Airflow. Runs anywhere."""

from __future__ import annotations

import secrets
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal, utc_now
from airflow_checkpoint_provider.coordinator.liveness import Beat, read_beat
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import LaunchSpec, Token
from airflow_checkpoint_provider.protocol.handover import LaunchSettings
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import Store, s3_credentials

RUN = "scheduled__2026-11-20T00:00:00+00:00"


class Launches:
    """The run's tries, and what is known of them. ``number`` is the newest launch. Not ``of_run``: all runs share the history."""

    def __init__(self, store: Store, job: str = "etl.totals", *, of_run: bool = True) -> None:
        self.history = History(job, RUN if of_run else None)
        self.store, self.keys = store, Keys(self.history.prefix)
        self.number = 0
        self.checkpointing = CheckpointConfig()  # of the task

    def plan(self, try_number: int = 1, *, run: str = RUN, seen_alive: bool = False, **wishes: Any) -> dict[str, str]:
        """One more try; the Spark confs with which its driver is submitted. ``wishes`` are fields of ``PlanLaunch``, and the ``generation``."""
        token = Token(dag="etl", run=run, task="totals", generation=wishes.pop("generation", 0))
        plan = c.PlanLaunch(
            spec=LaunchSpec(
                token=token,
                try_number=try_number,
                owner=token.owner,
                run=run,
                run_after="2026-11-20T00:00:00Z",
                started_at=utc_now(),
                restore=wishes.pop("restore", "latest"),
            ),
            incarnation=secrets.token_hex(16),
            job=self.history.job,
            scope=self.history.run or "",
            seen_alive=seen_alive,
            **wishes,
        )
        journal = self.coordinator().journal
        journal.append(plan)
        launch = journal.state.current_launch()
        assert launch
        self.number = launch.number
        settings = LaunchSettings(
            root=self.store.uri,
            history=self.keys.prefix,
            launch=launch.number,
            s3=s3_credentials.confs(self.store),
            job=self.history.job,
            token=token,
            try_number=try_number,
            checkpointing=self.checkpointing,
        )
        return settings.to_confs()

    def stop(self, try_number: int = 1) -> None:
        """As a task that is killed asks for it."""
        ask = c.RequestStop(launch=self.number, try_number=try_number, by="etl.totals", reason="the task was killed")
        self.coordinator().journal.append(ask)

    def coordinator(self) -> Coordinator:
        """A task's; its state is caught up."""
        coordinator = Coordinator(Journal(self.store, self.keys, By("task", "etl.totals", "")))
        coordinator.journal.catch_up()
        return coordinator

    def state(self) -> State:
        return self.coordinator().state

    def ends(self) -> list[tuple[str | None, int | None]]:
        """How each attempt ended, with the exit code that its driver announced."""
        return [(attempt.outcome, attempt.exit_code) for attempt in self.state().attempts]

    def last(self) -> AttemptRecord:
        return self.state().attempts[-1]

    def beat(self) -> Beat:
        """Of the newest attempt."""
        return read_beat(self.store, self.keys.attempt_beat(self.last().epoch)) or Beat()

    def refusal(self) -> str:
        """What the driver of the newest launch left for its task."""
        beat = read_beat(self.store, self.keys.driver_beat(self.number))
        return f"{beat.refusal.text}  [{beat.refusal.code}]" if beat and beat.refusal else ""
