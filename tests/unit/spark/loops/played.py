"""An attempt of a script with loops, values and frames, without Spark: the rows of a frame are one number. Runs anywhere."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, ClassVar, cast

from airflow_checkpoint_provider.coordinator.assignment import Allowed
from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.metadata import VALUE, StateSnapshot
from airflow_checkpoint_provider.spark.end import JobEnd
from airflow_checkpoint_provider.spark.loops.frame import Frame, OpenedFrame
from airflow_checkpoint_provider.spark.loops.frames import Frames, StoredFrame
from airflow_checkpoint_provider.spark.loops.loops import LoopParts, Loops
from airflow_checkpoint_provider.spark.loops.turns import LoopTurns
from airflow_checkpoint_provider.spark.stages.proof import WrittenRows
from airflow_checkpoint_provider.spark.state.carrying import of_next_run
from airflow_checkpoint_provider.spark.state.value import Value
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import file_set, stage, upload
from tests.unit.spark.driver import Driver

ANY: Any = None
Records = Iterable[StateSnapshot]


class Proved:
    """The proof of rows that were never in doubt."""

    def __init__(self, made: FileSet) -> None:
        self._made = made

    def begin(self) -> None:
        pass

    def files(self, check: object) -> tuple[Any, ...]:
        return self._made.files


class PlayedFrames(Frames):
    """Frames whose rows are a number each, kept by the identity of their file set."""

    stored: dict[str, int]  # of all attempts of a test
    driver: Driver

    def _initial(self, opened: OpenedFrame) -> Any:
        made = opened.first()
        if opened.at is None:
            opened.df = made
        return made

    def _read(self, uid: str, identity: str) -> Any:
        return self.stored[identity]

    def change(self, opened: OpenedFrame, df: Any) -> None:
        opened.df, opened.at, opened.saved, opened.changed = df, None, None, True

    def _write(self, opened: OpenedFrame) -> StoredFrame:
        made = file_set(opened.uid, self.driver.attempt.epoch, secrets.token_hex(8))
        upload(self.driver.coordinator.store, self.driver.coordinator, [made])
        self.stored[made.identity] = cast(Any, self.rows(opened))
        return StoredFrame(opened, WrittenRows(made, "", "zstd", 0.0, cast(Any, Proved(made))))


class Played:
    """One attempt. It begins with the records that another attempt of the run has left, or with those of ``next_run``."""

    stored: ClassVar[dict[str, int]] = {}

    def __init__(
        self,
        records: Records = (),
        application: str = "first",
        *,
        run: str = "run-1",
        allowed: Allowed = False,
        run_values: dict[str, Any] | None = None,
    ) -> None:
        self._driver, self._allowed = Driver(MemoryStore()), allowed
        self.states = states = self._driver.states
        states.given, states.run = None, run
        states.snapshots = {record.uid: record for record in records}
        states.run_values = dict(run_values or {})
        states.values, states.begun_with = dict(states.run_values), frozenset(states.snapshots)
        if any(record.loop and record.loop.turns for record in states.snapshots.values()):
            states.hold_values({record.uid: record.value for record in records if record.kind == VALUE})
        self._frames = PlayedFrames(ANY, self._driver.attempt, states, ANY)
        self._frames.stored, self._frames.driver = self.stored, self._driver
        driver = self._driver
        parts = LoopParts(
            driver.attempt, states, driver.sinks, driver.checkpointer, self._frames, application, 1e9, allowed
        )
        self.loops = Loops(parts, lambda: None)

    def next_run(self, application: str = "first", *, allowed: Allowed = False) -> Played:
        """Return the first attempt of the next run, after this one has ended well."""
        run = f"{self.states.run}+"
        carried = [kept for record in self.end() if (kept := of_next_run(record, run))]
        values = {record.uid: record.value for record in carried if record.kind == VALUE}
        return Played(carried, application, run=run, allowed=allowed, run_values=values)

    def retry(self, application: str = "first", *, allowed: Allowed = False) -> Played:
        """Return the next attempt of the run, after this one has failed behind its newest checkpoint."""
        run = self.states.run
        return Played(self.records(), application, run=run, allowed=allowed, run_values=self.states.run_values)

    # -- what the script calls ---------------------------------------------------------------------------------------

    def value(self, uid: str, default: Any = 0) -> Value:
        self.states.claim_value(uid)
        return Value(self.states.values, uid, default, self._set)

    def _set(self, uid: str, value: Any) -> None:
        self.states.set_value(uid, value)
        self.loops.note_value(uid)

    def frame(self, uid: str) -> Frame:
        opened = self._frames.open(uid, cast(Any, lambda: 0))
        change = self._frames.change
        return Frame(
            lambda: self._frames.rows(opened), lambda df: self.loops.change(opened, lambda: change(opened, df))
        )

    def stage(self, uid: str, made: str = "1-a") -> None:
        """Hand out a stage. ``made``: the epoch of the attempt that has computed it, and a nonce."""
        epoch, _, nonce = made.partition("-")
        self.states.hand_out(stage(uid, 0, made_of=file_set(uid, int(epoch), nonce)))

    def iterate(self, uid: str, items: Iterable[Any], every: int = 1) -> LoopTurns:
        return self.loops.iterate(uid, items, every)

    def once(self, uid: str, items: Iterable[Any]) -> LoopTurns:
        return self.loops.once(uid, items)

    # -- afterwards --------------------------------------------------------------------------------------------------

    def end(self) -> tuple[StateSnapshot, ...]:
        """End the script well. Return what the last checkpoint holds."""
        driver = self._driver
        used = {"states": self.states, "loops": self.loops, "sinks": driver.sinks, "registered": driver.registered}
        others = ("spark", "attempt", "checkpointer", "queries", "commits", "timer", "launched", "kills")
        end = JobEnd(**dict.fromkeys(others, ANY), **cast(Any, used), allow_non_restored_state=self._allowed)
        end.settle_states()
        return self.records()

    def records(self) -> tuple[StateSnapshot, ...]:
        """Return what a checkpoint would hold now."""
        return self.states.records("")

    def held(self, uid: str) -> Any:
        """Return the value of a state in such a checkpoint, or the number of a frame's rows."""
        record = {one.uid: one for one in self.records()}[uid]
        return self.stored[record.file_sets[-1].identity] if record.frame else record.value


def add(frame: Frame, number: int) -> None:
    """Add to the rows of a frame, in a turn."""
    frame.set(cast(Any, total(frame) + number))


def total(frame: Frame) -> int:
    """Return the number that is the rows of a frame."""
    return cast(int, frame.df)
