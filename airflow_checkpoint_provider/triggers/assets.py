"""The trigger of ``checkpoint_asset``: an asset event for each completed checkpoint. Runs in Airflow (DAG processor, triggerer)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.connections import NoConnection
from airflow_checkpoint_provider.hooks.history import COMMIT, HistoryReader, readable, why_unknown
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text.messages import no_events_yet
from airflow_checkpoint_provider.triggers.checkpoint import RepeatedError, Repetition
from airflow_checkpoint_provider.triggers.threads import in_thread

SENT = "checkpoint_events"  # in the state store of the asset: the checkpoints that have an event


@dataclass(frozen=True)
class SentEvents:
    """The checkpoints that have an event, of those that can still be read: the ids in one incarnation of a history. ``commits`` are
    those whose commit has an event: it may come long after that of the checkpoint.
    """

    incarnation: str
    ids: frozenset[int]
    commits: frozenset[int]

    @classmethod
    def of(cls, state: State, kinds: Collection[str]) -> SentEvents:
        found = readable(state, kinds)
        ids = frozenset(checkpoint.id for checkpoint, kind in found if kind != COMMIT)
        return cls(state.incarnation, ids, frozenset(checkpoint.id for checkpoint, kind in found if kind == COMMIT))

    @classmethod
    def from_json(cls, found: Any) -> SentEvents:
        commits = found.get("commits", found["ids"])  # an earlier version did not tell them apart
        return cls(found["incarnation"], frozenset(found["ids"]), frozenset(commits))

    def to_json(self) -> dict[str, Any]:
        return {"incarnation": self.incarnation, "ids": sorted(self.ids), "commits": sorted(self.commits)}

    def lacks(self, state: State, checkpoint: Checkpoint, kind: str) -> bool:
        sent = self.commits if kind == COMMIT else self.ids
        return self.incarnation != state.incarnation or checkpoint.id not in sent


class CompletedCheckpointTrigger(BaseEventTrigger):
    """Fires for each checkpoint that a job completes, and once more when its rows are committed, from its first poll on.

    The event is the XCom of a task that triggers a checkpoint, with ``kind`` and ``bytes``. It may come twice: it counts as sent at
    the next poll, when Airflow has stored it. Then a triggerer that is lost in between loses no event.

    :param job: the id of a job whose runs share one history.
    :param kinds: one or more of "savepoint", "checkpoint" and "commit".
    :param checkpoint_conn_id: connection by which the triggerer finds the store.
    :param item: of a mapped job: the item.
    """

    def __init__(
        self,
        *,
        job: str,
        kinds: Sequence[str],
        checkpoint_conn_id: str,
        poll_interval: float,
        item: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.item = item
        self.job, self.kinds, self.checkpoint_conn_id = job, list(kinds), checkpoint_conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ["job", "kinds", "checkpoint_conn_id", "poll_interval"]
        names += ["item"] if self.item is not None else []  # Airflow knows a trigger by its arguments
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        reader = CheckpointStorageHook(self.checkpoint_conn_id).get_history(self.job, "triggerer", self.item)
        trouble, unknown = RepeatedError(self.log), Repetition()
        stored: SentEvents | None = None
        sent: SentEvents | None = None  # None: the checkpoints that exist now have no event
        while True:
            try:
                if sent is None:
                    stored = sent = await self._load()
                if sent is not None and sent != stored:
                    await self._store(sent)
                    stored = sent
                state = await self._read(reader, unknown)
            except Exception as error:  # noqa: BLE001 - Airflow raises any error of its client, and an error would end the trigger
                trouble.warn(error, "polling again")
            else:
                for checkpoint, kind in readable(state, self.kinds):
                    if sent is not None and sent.lacks(state, checkpoint, kind):
                        yield TriggerEvent(reader.event(checkpoint, kind))  # type: ignore[no-untyped-call]
                if sent is None or state.n >= 0:  # a history may be out of sight for a moment
                    sent = SentEvents.of(state, self.kinds)
            await asyncio.sleep(self.poll_interval)

    async def _read(self, reader: HistoryReader, unknown: Repetition) -> State:
        """Return the state of the history. Say now and then if there is none: its name may be wrong."""
        state = await in_thread("poll", self.checkpoint_conn_id, _poll, reader)
        if state.n < 0 and unknown.due("no history"):
            why = await in_thread("poll", self.checkpoint_conn_id, _why_unknown, reader)
            self.log.warning("%s", no_events_yet(self.job, why))
        return state

    async def _load(self) -> SentEvents | None:
        found = await self.asset_state_store.aget(SENT) if self.asset_state_store is not None else None
        return SentEvents.from_json(found) if found is not None else None

    async def _store(self, sent: SentEvents) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(SENT, sent.to_json())


def _poll(reader: HistoryReader) -> State:
    """Return the state of the history, also if the job has never run."""
    try:
        return reader.poll()
    except NoConnection as error:  # the first launch of a job without a connection creates its folder
        if error.about.get("named"):
            raise
        return State()


def _why_unknown(reader: HistoryReader) -> str:
    """Return why there may be no history yet."""
    try:
        store = reader.coordinator.store
    except NoConnection as error:
        return error.message
    return why_unknown(store, reader.history, 'an asset watches only a job with scope="job"')
