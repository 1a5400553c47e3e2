"""Progress of the running stage, for heartbeat and log: one line a minute. Runs in the Spark driver."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.protocol.handover import job_group
from airflow_checkpoint_provider.protocol.part_records import PartsProgress
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.attempt.protection import Protection
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.text import units

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_EVERY = 60.0  # seconds between two lines


@dataclass(frozen=True)
class Tasks:
    """The tasks that Spark has planned for a stage so far. It may plan more: one Spark job may follow another."""

    done: int
    total: int

    @property
    def fraction(self) -> float:
        return self.done / self.total


def working(uid: str, elapsed: float, now: Tasks | None, parts: PartsProgress | None = None) -> str:
    """Return the line about a stage after ``elapsed`` seconds. It estimates no time left: nobody knows which tasks Spark plans next."""
    after = _minutes(elapsed)
    if parts:
        return f"stage '{uid}': {parts} are done after {after}"
    if now is None:
        return f"stage '{uid}': working for {after}, Spark has not planned its tasks yet"
    planned = f"{units.plural(now.total, 'task')} planned so far {units.fitting(now.total, 'are')} done after {after}"
    if now.done >= now.total:
        return f"stage '{uid}': the {planned}; Spark continues"
    return f"stage '{uid}': {now.fraction:.0%} of the {planned}"


def _minutes(seconds: float) -> str:
    return units.duration(round(seconds / 60) * 60)


class Progress:
    """Reports what the driver is doing. The attempt's watch calls it once a second."""

    def __init__(self, spark: SparkSession, attempt: Attempt, protection: Protection) -> None:
        self._spark, self._attempt, self._protection = spark, attempt, protection
        self._uid: str | None = None
        self._since = self._logged = time.monotonic()

    def report(self) -> None:
        """Write stage and progress into the heartbeat, and log them once a minute."""
        self._protection.remind()
        uid, parts, now = self._attempt.activity.stage, self._attempt.activity.parts, time.monotonic()
        if uid != self._uid:
            self._uid, self._since, self._logged = uid, now, now
        tasks = self._tasks(uid) if uid and not parts else None
        done = parts.done / parts.total if parts else tasks.fraction if tasks else None
        self._attempt.heart.update(lambda beat: replace(beat, activity=str(self._attempt.activity), fraction=done))
        if uid and now - self._logged >= LOG_EVERY:
            say(working(uid, now - self._since, tasks, parts))
            self._logged = now

    def _tasks(self, uid: str) -> Tasks | None:
        """Return the tasks of the jobs that Spark has started so far; None if there are none."""
        try:
            tracker = self._spark.sparkContext.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(job_group(uid))]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            total = sum(stage.numTasks for stage in stages if stage)
            return Tasks(sum(stage.numCompletedTasks for stage in stages if stage), total) if total else None
        except Exception:  # noqa: BLE001 - a JVM that is ending may raise anything; the watchdog handles its end
            return None
