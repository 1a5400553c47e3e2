"""The whole life of a run without Spark, step by step, over a store that is disturbed at a chosen request. Runs anywhere.

    life = Life(Disturbed(MemoryStore()), target)
    life.live()

A step is what one process does: it opens the journal anew. When a step fails, the disturbance is over, and the step is done
again, as by a retry. Nothing that was completed before may be lost meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

from airflow_checkpoint_provider.coordinator import closing, garbage, savepoint
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.files import export_pairs, verify
from airflow_checkpoint_provider.coordinator.journal import Journal, utc_text
from airflow_checkpoint_provider.coordinator.restore import examine, open_pointer, verified
from airflow_checkpoint_provider.coordinator.savepoint_target import DISPOSAL, delete_savepoint, open_savepoint
from airflow_checkpoint_provider.errors import CheckpointError, SavepointDisposed, StoreUnavailable
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, Checkpoint
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.storage import Put, Store, copy_all
from airflow_checkpoint_provider.storage.base import put
from tests.support.acknowledgements import ROWS, acknowledgement, file_set, stage
from tests.support.faults import FaultyStore, served
from tests.support.histories import BEGIN, JOB, launch, start

RUN = "day-1"
SEGMENT = 4  # entries of the journal, so that a short life closes and compacts segments
LATER = timedelta(days=10_000)  # after every time that a clock wrote


class Disturbed(FaultyStore):
    """A store whose plan sees the requests to the stores beside it, too."""

    def beside(self, uri: str, *, limited: bool = True) -> Store:
        store = Disturbed(self.inner.beside(uri, limited=limited), lambda call: self.plan(call))  # noqa: PLW0108 - it may be replaced
        store.requests, store._lock = self.requests, self._lock
        return store


class Life:
    """A run with two tries, three checkpoints that are kept for a while, a savepoint in ``target``, and its end.

    Whoever disturbs it sets ``begun``; ``heal`` ends the disturbance after the step.
    """

    def __init__(self, store: Disturbed, target: str, heal: Callable[[], object] = lambda: None) -> None:
        self.store, self.target, self._heal = store, target, heal
        self.keys = Keys(History(JOB, RUN).prefix)
        self.begun = False
        self.offset = timedelta(0)  # of every process's clock
        self.errors: list[CheckpointError] = []
        self.completed: dict[str, int] = {}  # token -> id, once a process was told
        self.table: list[tuple[int, str, str]] = []  # id, kind and status of the checkpoints before the end
        self._ticks = 0

    # -- living ----------------------------------------------------------------------------------------------------

    def live(self) -> None:
        for step in self.steps():
            try:
                step()
            except CheckpointError as error:
                self.errors.append(error)
                self.heal()
                step()
            if self.begun:
                self.heal()

    def heal(self) -> None:
        if self.begun:
            self._heal()
        self.store.plan, self.begun = served, False
        self.store.land()
        self.check_nothing_lost()

    def steps(self) -> Iterator[Callable[[], object]]:
        yield self.plan_first
        yield lambda: self.attach(1)
        yield lambda: self.leave_rows("lost")
        yield lambda: self.take("s1")
        yield lambda: self.take("s2", "s1")
        yield self.take_savepoint
        yield lambda: self.take("s4", "s2")
        yield self.retire
        yield self.fail
        yield self.retry
        yield lambda: self.attach(2)
        yield lambda: self.take("s5", "s4")
        yield self.retire
        yield self.sweep
        yield self.open_savepoint
        yield self.finish
        yield self.note
        yield self.dispose
        yield self.collect
        yield self.close

    def now(self) -> str:
        self._ticks += 1
        return utc_text(BEGIN + timedelta(seconds=self._ticks) + self.offset)

    def opened(self, store: Store | None = None, *, driver: bool = False) -> Coordinator:
        """Return the coordinator of a process that has just begun."""
        by = By("driver" if driver else "task", JOB, "host")
        journal = Journal(store or self.store, self.keys, by, segment=SEGMENT, clock=self.now)
        coordinator = Coordinator(journal)
        coordinator.journal.catch_up()
        coordinator.epoch = coordinator.state.last_epoch if driver else None
        return coordinator

    # -- the steps -------------------------------------------------------------------------------------------------

    def plan_first(self) -> None:
        self.opened().journal.append(launch(RUN, scope=RUN))

    def attach(self, try_number: int) -> None:
        config = CheckpointConfig(retention=KeepLatest(2)).to_json()
        self.opened().journal.append(start(RUN, try_number, checkpointing=config))

    def leave_rows(self, uid: str) -> None:
        """Write rows that no checkpoint ever holds."""
        self._upload(self.opened(driver=True), file_set(uid, 1, files=1))

    def take(self, uid: str, *handed_on: str) -> None:
        driver = self.opened(driver=True)
        checkpoint = self._asked(driver, Request(token=uid, timeout_s=600.0))
        if checkpoint.status == PENDING:
            states = [self._state(driver, name) for name in handed_on]
            new = stage(uid, checkpoint.id, made_of=file_set(uid, driver.epoch or 0, files=1))
            self._upload(driver, *new.file_sets)
            self._complete(driver, checkpoint, new, *states)
        self.completed[uid] = checkpoint.id

    def take_savepoint(self) -> None:
        driver = self.opened(driver=True)
        request = Request(token="savepoint", kind="savepoint", folder=self.target, timeout_s=600.0)
        checkpoint = self._asked(driver, request)
        if checkpoint.status == PENDING:
            pointer, state = savepoint.target_of(checkpoint), self._state(driver, "s2")
            target = driver.store.beside(pointer.root)
            copy_all(driver.store, target, export_pairs([state], driver.keys, pointer.keys))
            verify(target, pointer.keys, [state])
            self._complete(driver, checkpoint, state)
        savepoint.publish_due(driver)
        self.completed["savepoint"] = checkpoint.id

    def retire(self) -> None:
        garbage.retire(garbage.unshared(self.opened(driver=True)), self.now())

    def sweep(self) -> None:
        garbage.remove_orphans(garbage.unshared(self.opened(driver=True)))

    def fail(self) -> None:
        task = self.opened()
        task.end_attempt(c.EndAttempt(epoch=1, outcome="failed", exit_code=1))

    def retry(self) -> None:
        task = self.opened()
        examine(task, task.state, task.state.restore_point())
        task.journal.append(launch(RUN, 2, scope=RUN))

    def open_savepoint(self) -> None:
        open_pointer(savepoint.target_of(self._listed("savepoint")), self.store, deep=False)

    def finish(self) -> None:
        task = self.opened()
        task.end_attempt(c.EndAttempt(epoch=2, outcome="finished", exit_code=0))

    def note(self) -> None:
        self.table = [(listed.id, listed.kind, listed.status) for listed in self.opened().state.checkpoints]

    def dispose(self) -> None:
        # Its history is told by the next collection: the segments of this journal are shorter than a person's command expects
        pointer = savepoint.target_of(self._listed("savepoint"))
        target = self.store.beside(pointer.root)
        delete_savepoint(target, pointer, DISPOSAL, "ann", self.now())
        self.opened().journal.append(c.Condemn(ids=(self.completed["savepoint"],), now=self.now(), disposing=True))

    def collect(self) -> None:
        garbage.collect(garbage.unshared(self.opened()), self.now())

    def close(self) -> None:
        task = self.opened()
        later = utc_text(BEGIN + LATER)
        garbage.collect(garbage.unshared(task), later)
        assert closing.close_if_due(task, later)

    # -- their parts -----------------------------------------------------------------------------------------------

    def _asked(self, driver: Coordinator, request: Request) -> Checkpoint:
        number = driver.trigger(request)
        checkpoint = driver.state.checkpoint(number)
        assert checkpoint
        assert checkpoint.status != ABORTED
        return checkpoint

    def _listed(self, token: str) -> Checkpoint:
        checkpoint = self.opened().state.checkpoint(self.completed[token])
        assert checkpoint
        return checkpoint

    def _state(self, driver: Coordinator, uid: str) -> StateSnapshot:
        """Return a state as a completed checkpoint holds it."""
        checkpoint = driver.state.checkpoint(self.completed[uid])
        assert checkpoint
        return driver.read_seal(checkpoint).states[uid]

    def _upload(self, driver: Coordinator, *file_sets: FileSet) -> None:
        """Write the rows, as Spark would: until each file is there."""
        for written in file_sets:
            for file in written.files:
                if put(driver.store, f"{driver.keys.file_set(written.path)}/{file.name}", ROWS)[0] is not Put.STORED:
                    raise StoreUnavailable("the rows were not written")

    def _complete(self, driver: Coordinator, checkpoint: Checkpoint, *states: StateSnapshot) -> None:
        ack = acknowledgement(
            checkpoint.id, *states, epoch=driver.epoch or 0, nonce=secrets.token_hex(8), inc=driver.state.incarnation
        )
        driver.acknowledge(ack)
        driver.complete(checkpoint.id)

    # -- what must hold --------------------------------------------------------------------------------------------

    def check_nothing_lost(self) -> None:
        """Assert that all checkpoints that a process was told of are listed, and that those that are kept can be restored."""
        reader = self.opened(self.store.inner)
        if reader.state.closed:
            return
        listed = {checkpoint.id: checkpoint for checkpoint in reader.state.checkpoints}
        for token, number in self.completed.items():
            assert listed[number].completed_at, f"{token}, chk-{number}, is {listed[number].status}"
        for checkpoint in reader.state.retained:
            if not checkpoint.savepoint:
                verified(reader, checkpoint)
            elif checkpoint.published:
                with suppress(SavepointDisposed):
                    open_savepoint(savepoint.target_of(checkpoint), self.store.inner).verify()

    def left(self) -> list[str]:
        """Return the keys of all that lies in the store of the history."""
        return sorted(listed.key for listed in self.store.inner.list(""))
