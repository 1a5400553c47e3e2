"""What a driver is doing, for heartbeat and log: one line a minute while a stage works. Runs in the Spark driver."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.protocol.handover import job_group
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt import Attempt
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.protection import Protection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY = 60.0  # seconds between two lines


class Progress:
    """Called once a second by the attempt's watch."""

    def __init__(self, spark: SparkSession, attempt: Attempt, protection: Protection) -> None:
        self._spark, self._attempt, self._protection = spark, attempt, protection
        self._uid: str | None = None
        self._since = self._said = time.monotonic()

    def look(self, state: State) -> None:
        """Note what is worked on and how far it is; say it once a minute."""
        self._protection.remind()
        uid, now = self._attempt.stage, time.monotonic()
        if uid != self._uid:
            self._uid, self._since, self._said = uid, now, now
        done = self._fraction(uid) if uid else None
        self._attempt.heart.update(lambda beat: replace(beat, doing=self._attempt.doing(), fraction=done))
        if uid and now - self._said >= EVERY:
            self._said = now
            share = "" if done is None else f", {done:.0%} of its tasks"
            say(f"stage '{uid}': working for {(now - self._since) / 60:.0f} min{share}")

    def _fraction(self, uid: str) -> float | None:
        """The share of finished tasks in the jobs that Spark knows of so far."""
        try:
            tracker = self._spark.sparkContext.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(job_group(uid))]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            total = sum(stage.numTasks for stage in stages if stage)
            return sum(stage.numCompletedTasks for stage in stages if stage) / total if total else None
        except Exception:  # noqa: BLE001 - a JVM that is going away raises what it likes; the watchdog sees to it
            return None
