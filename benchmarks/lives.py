"""Long histories, made by the commands of launches, drivers and deletions. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import SEGMENT
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import MemoryStore
from airflow_checkpoint_provider.storage.base import Store
from tests.support.acknowledgements import acknowledgement, file_set, stage
from tests.support.garbage import retire
from tests.support.histories import at, launch, start
from tests.support.journals import KEYS, open_journal

DEEP = SEGMENT // 2  # entries after the last boundary where a history is measured: a fresh start reads them all


class Life:
    """The job of one history, whose checkpoints hold one stage. ``retained`` checkpoints are kept."""

    def __init__(self, store: Store, retained: int = 2) -> None:
        self.retained = retained
        self.coordinator = Coordinator(open_journal(store))
        self.coordinator.journal.catch_up()

    @property
    def state(self) -> State:
        return self.coordinator.state

    def begin(self) -> None:
        """Launch the next run and start its attempt: two entries."""
        number = self.state.next_launch
        run, journal = f"run-{number:07d}", self.coordinator.journal
        journal.append(launch(run, run_after=at(number)))
        journal.append(start(run, checkpointing=CheckpointConfig(retention=KeepLatest(self.retained)).to_json()))
        self.coordinator.epoch = self.state.last_epoch

    def checkpoint(self) -> None:
        """Take a checkpoint, from its trigger until it is completed: two entries."""
        number, epoch = self.state.next_id, self.state.last_epoch
        snapshot = stage("clean", number, made_of=file_set("clean", epoch, f"nonce{number}"))
        self.coordinator.trigger(Request(token=f"barrier {number}", timeout_s=600.0))
        self.coordinator.acknowledge(acknowledgement(number, snapshot, epoch=epoch))
        self.coordinator.complete(number)

    def delete_expired(self) -> None:
        """Delete what no policy keeps: two entries if there is any. Compact the journal if a segment has ended."""
        retire(self.coordinator)

    def run(self) -> None:
        """Live a whole run with one checkpoint: seven entries."""
        self.begin()
        self.checkpoint()
        self.delete_expired()
        self.coordinator.journal.append(c.EndAttempt(epoch=self.state.last_epoch, outcome="finished", exit_code=0))

    def begin_deep(self) -> None:
        """Begin a run that is measured, ``DEEP`` entries after a boundary: launches that are replaced fill up the segment."""
        while (self.state.n + 3) % SEGMENT != DEEP:
            number = self.state.next_launch
            self.coordinator.journal.append(launch(f"run-{number:07d}", run_after=at(number)))
        self.begin()


def lengthened(state: State, entries: int) -> MemoryStore:
    """Return the journal of a history with ``state`` that is ``entries`` long, and was compacted.

    A compacted segment leaves one stub, whatever was in it. So this journal is what a life of that many entries leaves, and
    nobody waits for that life.
    """
    memory, last, inc = MemoryStore(), entries // SEGMENT, state.incarnation
    for segment in range(last):
        names = {"job": state.job, "scope": state.scope, "item": state.item} if segment == 0 else {}
        _put(memory, Entry(inc, segment * SEGMENT, "", "", {}, (), stub=True, extra=names))
    before = replace(state, n=last * SEGMENT - 1)
    _put(memory, Entry(inc, last * SEGMENT, "nonce", state.at, {"place": "task"}, (), snapshot=before))
    return memory


def _put(memory: MemoryStore, entry: Entry) -> None:
    memory.create(KEYS.entry(entry.n), entry.to_bytes())


def copied(memory: MemoryStore, folder: Path) -> None:
    """Write the objects of a store in memory where a local store with the root ``folder`` has them, without waiting for the disk."""
    for key, body in memory.objects.items():
        file = folder / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
