"""The participants in the checkpoints of an attempt. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from airflow_checkpoint_provider.spark.state.registered import Registered
from airflow_checkpoint_provider.spark.state.snapshot import Check, Snapshot
from airflow_checkpoint_provider.spark.state.states import States


class Streams(Protocol):
    """The streaming queries of the attempt, as far as checkpoints know them."""

    def pin(self, barrier: str) -> Mapping[str, Snapshot]:
        """Return a snapshot of each query as it is now, by uid."""

    def rest(self, check: Check, *, drain: bool) -> None:
        """Stop the queries for the savepoint with which the job stops. With ``drain``, let them first read all rows that are there. The
        script still sees them running. Raises what ``check`` raises, and ``Declined``.
        """

    def resume(self) -> None:
        """Start the queries again if ``rest`` has stopped them."""


@dataclass(frozen=True)
class Participants:
    """The stages and values of the script, the objects that it has registered, and its queries."""

    states: States
    registered: Registered
    streams: Streams

    def pin(self, barrier: str, *, of_script: bool) -> tuple[Snapshot, ...]:
        """Return every state as it is now, at ``barrier``. Not ``of_script``: values and objects as at the script's last barrier."""
        with self.states.lock:
            streams = self.streams.pin(barrier)
            states = self.states.pin(barrier, of_script=of_script)
        return tuple(snapshot for _, snapshot in sorted({**states, **streams}.items()))
