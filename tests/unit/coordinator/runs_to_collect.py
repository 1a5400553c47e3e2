"""Runs of one job that have left something, and the collection that looks at them. Runs anywhere."""

from __future__ import annotations

from typing import Any

from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.older_runs import OlderRun, collect_older_runs
from airflow_checkpoint_provider.policies.retention import KeepLatest, Retention
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import Store
from tests.support.recorded import Recorded

JOB = "flights_etl.delays"
RUN = "scheduled__2026-11-20"
OWN = History(JOB, "scheduled__2027-01-01").prefix
BY = By("task", JOB, "host")


def day(number: int) -> str:
    """Return the time ``number`` days after the begin of the run, which lasts two hours."""
    return f"2026-{11 + (19 + number) // 30:02d}-{(19 + number) % 30 + 1:02d}T23:59:59.000Z"


def ran(
    store: Store,
    run: str = RUN,
    outcome: str | None = "failed",
    retention: Retention | None = None,
    checkpoints: int = 1,
    job: str = JOB,
    item: str | None = None,
) -> Recorded:
    """A run of so many checkpoints; ``outcome`` None: nobody said that it ended."""
    recorded = Recorded(store, job, run, item)
    recorded.launched("22:00:00")
    config = CheckpointConfig(retention=retention or KeepLatest(2)).to_json()
    recorded.attached("22:00:10", **config)
    for number in range(checkpoints):
        recorded.stage(f"s{number}", "22:10:00", "22:10:01", work_s=1, kib=1)
    if outcome:
        recorded.ended("23:00:00", outcome, 0 if outcome == "finished" else 1)
    return recorded


def sweep(store: Store, now: str, own: str = OWN) -> list[OlderRun]:
    return [run for run in collect_older_runs(store, JOB, BY, own=own, now=now) if run.changed or run.error]


def state_of(store: Store, run: str = RUN) -> State:
    return Journal(store, Keys(History(JOB, run).prefix), BY).catch_up()


def runs(store: Store, count: int, **other: Any) -> list[str]:
    names = [f"scheduled__2026-{9 + number // 28:02d}-{number % 28 + 1:02d}" for number in range(count)]
    for name in names:
        ran(store, name, **other)
    return names
