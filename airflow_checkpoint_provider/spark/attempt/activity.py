"""The present activity of the driver, for its heartbeat and its log. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.liveness import QueryProgress
from airflow_checkpoint_provider.protocol.part_records import PartsProgress
from airflow_checkpoint_provider.text import part_messages, query_progress


class Activity:
    """The present activity of the driver. Its text is for people."""

    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self.stage: str | None = None  # the stage that is being computed
        self.turn = ""  # of a loop, as people read it
        self.parts: PartsProgress | None = None  # of it, if it has parts
        self.queries: tuple[QueryProgress, ...] = ()  # that run
        self.draining: str | None = None  # the query that is drained before the job stops
        self._copying = ""  # the pointer whose files are copied before the script runs

    def __str__(self) -> str:
        if self._copying:
            return f"copying {self._copying}"
        if self.draining:
            return f"draining query '{self.draining}'"
        if self.stage:
            return f"stage '{self.stage}'" + (f", {part_messages.next_part(self.parts)}" if self.parts else "")
        if self.turn:
            return self.turn
        return query_progress.running(self.queries) or "the script's own code"

    @contextmanager
    def copying(self, source: str) -> Iterator[None]:
        """Show in the heartbeat that the driver copies ``source`` before it attaches."""
        self._copying = source
        self._heart.update(lambda beat: replace(beat, activity=str(self)))
        try:
            yield
        finally:
            self._copying = ""

    def attach(self, application: str, spark_application: str = "", spark_ui: str = "") -> None:
        """Show in the heartbeat that the states are read and the script's own code begins."""
        self._heart.update(
            lambda beat: replace(
                beat,
                attached_at=utc_now(),
                application_change=application,
                activity=str(self),
                spark_application=spark_application,
                spark_ui=spark_ui,
            )
        )
        self._heart.pulse()

    def run(self, queries: tuple[QueryProgress, ...]) -> None:
        """Show in the heartbeat what the queries do."""
        self.queries = queries
        self._heart.update(lambda beat: replace(beat, queries=queries, activity=str(self)))
