"""Progress of the running stage, for heartbeat and log: one line a minute. Runs in the Spark driver."""

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

LOG_EVERY = 60.0  # seconds between two lines


class Progress:
    """Reports what the driver is doing. The attempt's watch calls it once a second."""

    def __init__(self, spark: SparkSession, attempt: Attempt, protection: Protection) -> None:
        self._spark, self._attempt, self._protection = spark, attempt, protection
        self._uid: str | None = None
        self._since = self._logged = time.monotonic()

    def look(self, state: State) -> None:
        """Write stage and progress into the heartbeat, and log them once a minute."""
        self._protection.remind()
        uid, now = self._attempt.stage, time.monotonic()
        if uid != self._uid:
            self._uid, self._since, self._logged = uid, now, now
        done = self._fraction(uid) if uid else None
        self._attempt.heart.update(lambda beat: replace(beat, activity=self._attempt.doing(), fraction=done))
        if uid and now - self._logged >= LOG_EVERY:
            self._logged = now
            share = "" if done is None else f", {done:.0%} of its tasks"
            say(f"stage '{uid}': working for {(now - self._since) / 60:.0f} min{share}")

    def _fraction(self, uid: str) -> float | None:
        """Return the share of finished tasks in the jobs that Spark has started so far; None if there are none."""
        try:
            tracker = self._spark.sparkContext.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(job_group(uid))]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            total = sum(stage.numTasks for stage in stages if stage)
            return sum(stage.numCompletedTasks for stage in stages if stage) / total if total else None
        except Exception:  # noqa: BLE001 - a JVM that is ending may raise anything; the watchdog handles its end
            return None
