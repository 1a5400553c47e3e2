"""The participants in the checkpoints of an attempt. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
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


class Outputs(Protocol):
    """The sinks of the attempt, as far as checkpoints know them."""

    @property
    def unsaved(self) -> bool:
        """Return whether a write is in no completed checkpoint that is known."""

    def pin(self, barrier: str) -> Mapping[str, Snapshot]:
        """Return a snapshot of each sink as it is now, by uid."""


class Publication(Protocol):
    """The commits of the attempt, as far as checkpoints know them."""

    def begin(self) -> None:
        """Begin to commit what completed checkpoints hold. Returns at once."""

    def wait(self) -> None:
        """Wait until that is done. Raises ``CommitFailed``, and a permanent error of a sink."""

    def done(self, checkpoint: Checkpoint) -> bool:
        """Return whether all that a completed checkpoint publishes is committed."""


@dataclass(frozen=True)
class Participants:
    """The stages and values of the script, the objects that it has registered, its queries, and its sinks with their commits."""

    states: States
    registered: Registered
    streams: Streams
    sinks: Outputs
    commits: Publication

    def pin(self, barrier: str, *, of_script: bool) -> tuple[Snapshot, ...]:
        """Return every state as it is now, at ``barrier``. Not ``of_script``: values and objects as at the script's last barrier."""
        with self.states.lock:
            streams, sinks = self.streams.pin(barrier), self.sinks.pin(barrier)
            states = self.states.pin(barrier, of_script=of_script)
            objects = self.registered.pin() if of_script else {}
        return tuple(snapshot for _, snapshot in sorted({**states, **objects, **streams, **sinks}.items()))
