"""The loops of one attempt: finished turns are stored with the frames that they leave, and no retry runs them again. Runs in the Spark driver.

The barrier of a loop is the end of a turn. What it has written goes into one checkpoint: the position of the loop, the frames, the values,
and how often each sink was written to. Between two barriers of a loop, other checkpoints hold all of that as it was at the first of them:
a retry runs the turns since then again, and comes to the same writes.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_checkpoint_provider.coordinator.assignment import Allowed
from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.protocol.keys import file_set_epoch, file_set_path
from airflow_checkpoint_provider.protocol.metadata import LOOP, ONCE, LoopDetail, Measures, StateSnapshot
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.wording import run_start
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.loops import items
from airflow_checkpoint_provider.spark.loops.frame import OpenedFrame, outside_of_a_turn
from airflow_checkpoint_provider.spark.loops.frames import Frames, StoredFrame
from airflow_checkpoint_provider.spark.loops.names import LoopNames
from airflow_checkpoint_provider.spark.loops.pace import Every, Pace
from airflow_checkpoint_provider.spark.loops.resuming import why_anew
from airflow_checkpoint_provider.spark.loops.turns import Left, Loop, LoopTurns, iterator, watched
from airflow_checkpoint_provider.spark.loops.waiting import WaitingLoops
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from airflow_checkpoint_provider.spark.stages.proof import Proof
from airflow_checkpoint_provider.spark.stages.reuse import StageRequest
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.text import loop_messages, state_messages


@dataclass(frozen=True)
class LoopParts:
    """The parts of an attempt that loops use. ``application`` is the digest of the application."""

    attempt: Attempt
    states: States
    sinks: Sinks
    checkpointer: Checkpointer
    frames: Frames
    application: str
    interval_s: float
    allow_non_restored_state: Allowed


class Loops:
    """The loops of one attempt. ``check`` raises unless the script may call the job now."""

    def __init__(self, parts: LoopParts, check: Callable[[], object]) -> None:
        self._attempt, self._states, self._sinks = parts.attempt, parts.states, parts.sinks
        self._checkpointer, self._frames, self._parts = parts.checkpointer, parts.frames, parts
        self.waiting = WaitingLoops(parts.attempt, parts.states, parts.frames)
        self._check = check
        self._open: Loop | None = None
        self._held: Left = lambda: None  # whether the script has not left the open loop
        self._finished_files: set[str] = set()  # of states that turns before the newest barrier have computed
        self._restored_values = dict(parts.states.held_values or {})
        self.names = LoopNames(parts.attempt, parts.states, parts.allow_non_restored_state)
        # uid of the newest loop that was left by ``break`` after changes that no barrier has stored
        self._broken_off: str | None = None
        self._same = True  # the script has come to all restored turns so far as they were stored
        parts.sinks.before_write = self._note_write

    # -- the script --------------------------------------------------------------------------------------------------

    def iterate(self, uid: str, items: Iterable[Any], every: Every) -> LoopTurns:
        """Return the turns of a loop that a run does once."""
        return self._turns(uid, LOOP, items, Pace.of(every, self._parts.interval_s))

    def once(self, uid: str, items: Iterable[Any]) -> LoopTurns:
        """Return the turns of a loop whose items a history does once."""
        return self._turns(uid, ONCE, items, Pace.of(1, 0.0))

    def _turns(self, uid: str, kind: str, items: Iterable[Any], pace: Pace) -> LoopTurns:
        self._states.claim_loop(uid, kind)
        return LoopTurns(Loop(uid, kind, iterator(items), pace), self._advance)

    def change(self, frame: OpenedFrame, change: Callable[[], None]) -> None:
        """Change a frame. Raises ``WrongUse`` outside of a turn."""
        loop = self._current()
        if loop is None or not loop.in_turn:
            raise outside_of_a_turn(frame)
        change()
        loop.effects = True

    def note_value(self, uid: str) -> None:
        """Note that the script has set a value."""
        if loop := self._current():
            loop.own_values.add(uid)
            loop.effects |= loop.in_turn

    def _note_write(self) -> None:
        if loop := self._current():
            loop.effects |= loop.in_turn
        else:
            self.left()

    def _current(self) -> Loop | None:
        """Return the loop in which the script is; None outside of loops, also if it has left one by ``break``."""
        return self._open if self._held() is not None else None

    def _advance(self, loop: Loop, turns: LoopTurns) -> Any:
        """Finish the present turn, and return the item of the next one. An error ends the loop, as ``break`` does."""
        try:
            return self._next(loop, turns)
        except BaseException:
            if self._open is loop:
                self._held = lambda: None  # the error holds the iterator, and may itself be held for long
            raise

    def _next(self, loop: Loop, turns: LoopTurns) -> Any:
        self._check()
        if loop.over:
            raise StopIteration
        if not loop.entered:
            self._enter(loop, turns)
        elif loop.in_turn:
            self._finish_turn(loop)
        if self._open is loop:
            self._held = watched(turns)
        for item in loop.items:
            body = items.item_json(loop.uid, item)
            if body in loop.known:
                loop.skipped.append(items.shown(item))
                continue
            items.refuse_many(loop.uid, loop.known)
            self._say_skipped(loop)
            loop.begin_turn(item, body, self._states.opened())
            self._attempt.activity.turn = f"turn {loop.turns + 1} of {loop.name}"
            return item
        self._end(loop)
        raise StopIteration

    def _say_skipped(self, loop: Loop) -> None:
        if loop.skipped:
            say(loop_messages.not_done_again(loop.uid, loop.skipped))
            loop.skipped = []

    # -- the beginning -----------------------------------------------------------------------------------------------

    def _enter(self, loop: Loop, turns: LoopTurns) -> None:
        """Begin a loop, or go on with it after the turns that the restore point holds."""
        self._refuse_inside(loop)
        self.left()
        self._attempt.writer.check_not_fenced()
        self._checkpointer.stop_if_asked(f"the beginning of {loop.name}")
        loop.before, loop.writes_before = dict(self._states.handed_out), self._sinks.counts()
        loop.broken_off = self._broken_off
        held = self._states.snapshots.get(loop.uid)
        if held and held.loop:
            held = self._kept(loop, held, held.loop)
        if held and held.loop:
            self._go_on(loop, held, held.loop)
        loop.entered, loop.saved, loop.saved_at = True, loop.turns, time.monotonic()
        loop.at_barrier = {*self._states.handed_out, loop.uid}
        self._open = loop
        self._hold(loop)

    def _kept(self, loop: Loop, held: StateSnapshot, detail: LoopDetail) -> StateSnapshot | None:
        """Return what the restore point holds of a loop, without turns that must be run again. Raises ``ItemsChanged``."""
        if not detail.turns:
            return held
        request = StageRequest(
            self._parts.application,
            None,
            True,
            loop.before,
            loop.uid,
            self._states.snapshots,
            generation=detail.generation,
        )
        overtaken = self._sinks.overtaken(detail.writes_before, detail.writes)
        if why := why_anew(detail, request, loop.writes_before, self._broken_off, overtaken):
            self._run_again(held, why)
        elif not loop.lasts:
            self._skip_finished(loop, detail)
        return self._states.snapshots.get(loop.uid)

    def _skip_finished(self, loop: Loop, detail: LoopDetail) -> None:
        """Take the items of finished turns out of the loop. Raises ``ItemsChanged``."""
        count = items.skip_finished(loop.uid, loop.items, detail.items, self._again)
        if count == detail.turns:
            return
        if detail.application != self._parts.application:
            raise items.ended_early(loop.uid, count, detail.turns, self._again)
        say(loop_messages.shorter(loop.uid, count, detail.turns, self._again))

    @property
    def _again(self) -> str:
        return run_start(self._attempt.journal.state)

    def _go_on(self, loop: Loop, held: StateSnapshot, detail: LoopDetail) -> None:
        """Set everything to what the finished turns have left."""
        self._states.handed_out[loop.uid] = held.identity
        loop.done, loop.began = (list(held.value), detail.began) if loop.lasts else ([], 0)
        loop.known = set(map(canonical, loop.done))
        loop.reopened = {canonical(item): item for item in detail.reopened}
        self.names.go_on(loop, detail, changed=detail.application != self._parts.application)
        loop.turns, loop.digests, loop.work_s = detail.turns, detail.items, held.measures.work_s
        if not detail.turns:
            return
        loop.own_values, loop.writes_before = set(detail.own_values), dict(detail.writes_before)
        self._sinks.pass_over(detail.writes)
        self._frames.pass_over(detail.frames)
        self._replay_values(loop, detail)
        self._attempt.heart.update(lambda beat: replace(beat, reused=(*beat.reused, loop.uid)))
        say(loop_messages.goes_on(loop.uid, loop.turns, loop.work_s, str(self._attempt.restored.point)))
        if detail.application != self._parts.application:
            say(loop_messages.other_application(loop.uid, loop.turns, self._again))

    def _replay_values(self, loop: Loop, detail: LoopDetail) -> None:
        """Set the values as they were at the barrier. Those that turns have set do not follow a changed script: nobody sets them again."""
        for uid in detail.own_values:
            self._states.set_value(uid, detail.values[uid])
        for value in self._states.replay_values(detail, self._parts.application):
            attempt = file_set_epoch(detail.path)
            say(state_messages.value_differs(value.uid, value.now, value.stored, loop.name, attempt, value.why_kept))

    def _run_again(self, held: StateSnapshot, why: str) -> None:
        """Let the run do without the finished turns of a loop, and of those after it, which were built on them."""
        self._same = False
        later = [state for state in self.waiting.states() if state.uid != held.uid]
        with self._states.lock:
            self.waiting.run_again([held], why)
            self.waiting.run_again(later, f"loop '{held.uid}' before it is run again")
            self.waiting.rewind_frames()

    # -- the end of a turn -------------------------------------------------------------------------------------------

    def _finish_turn(self, loop: Loop) -> None:
        """Note that the present turn is finished, and store what it has left if that is due."""
        now = time.monotonic()
        loop.in_turn, loop.turns, loop.work_s = False, loop.turns + 1, loop.work_s + now - loop.turn_began
        self.names.finish_turn(loop)
        if loop.lasts:
            loop.done.append(json.loads(loop.body))
            loop.known.add(loop.body)
            loop.reopened.pop(loop.body, None)
        else:
            loop.digests += items.item_digest(loop.body)
        turns, passed, requested = loop.turns - loop.saved, now - loop.saved_at, self._checkpointer.asked()
        free = not self._repeating
        if loop.pace.due(turns, passed, by_time=free) or (requested and free):
            self._barrier(loop)
        elif requested:  # without the turns since the newest barrier
            self._checkpointer.checkpoint(loop.barrier)

    @property
    def _repeating(self) -> bool:
        """Return whether the script still comes to something that an earlier attempt has done after the restored turns.

        What that has written was built on the frames as they were stored then. So they are not stored at other turns now.
        """
        application = self._parts.application
        if self._sinks.repeating(application):
            return True
        if not self._same:
            return False
        states = (self._states.snapshots.get(uid) for uid in self._states.unused_stages())
        made = [state.provenance for state in (*states, *self.waiting.states()) if state]
        return any(known and known.application == application for known in made)

    def _end(self, loop: Loop) -> None:
        """Note that all turns are finished, and store what they have left."""
        self._say_skipped(loop)
        if loop.turns > loop.saved:
            self._barrier(loop)
        self.waiting.end(loop.uid)
        loop.over = True
        self._close()

    def _barrier(self, loop: Loop) -> None:
        """Store the frames and the position of the loop, and begin the checkpoint that holds all of it."""
        self._attempt.writer.check_not_fenced()
        self.names.check(loop)
        with self._attempt.file_sets.stage("", {}):
            stored = self._frames.write(self._frames.unsaved())
            loop.work_s += sum(one.rows.work_s for one in stored)  # Spark computes here what the turns have planned
            with self._checkpointer.barrier_ahead():
                for one in stored:
                    self._checkpointer.beside(one.rows.proof.begin)
                self._checkpointer.await_in_flight()
                with self._states.lock:  # a checkpoint that the timer takes meanwhile holds all of it or nothing
                    self._frames.take_over(stored, cut=True)
                    self._take_over(loop, stored)
                self._checkpointer.checkpoint(loop.barrier)

    def _take_over(self, loop: Loop, stored: Sequence[StoredFrame]) -> None:
        """Let the states hold what the finished turns have left, and drop what only they needed."""
        states = self._states
        finished = states.handed_out.keys() - loop.at_barrier
        files = states.finish_turns([uid for uid in finished if uid in states.snapshots])
        self._attempt.file_sets.read_no_more(self._finished_files)
        self._finished_files = files
        if later := self.waiting.states():  # the frames that are stored now do not have what their turns have left
            self._same = False
            self.waiting.run_again(later, f"loop '{loop.uid}' before it has run more turns")
        states.hold([self._record(loop)])
        states.hold(self._frames.opened_records(loop.barrier, stored, self.waiting.details()), _proofs(stored))
        if later:
            self.waiting.rewind_frames()
        loop.saved, loop.saved_at, loop.effects = loop.turns, time.monotonic(), False
        self._hold(loop)

    def _record(self, loop: Loop) -> StateSnapshot:
        detail = LoopDetail(
            application=self._parts.application,
            earlier_stages=loop.earlier_stages,
            stage_before=next(reversed(loop.before), None),
            values=dict(self._states.values),
            generation=self._attempt.run.generation,
            path=file_set_path(loop.uid, self._attempt.epoch, secrets.token_hex(8)),
            turns=loop.turns,
            items=loop.digests,
            began=loop.began,
            frames=self._frames.at(),
            writes=self._sinks.counts(),
            writes_before=loop.writes_before,
            own_values=tuple(sorted(loop.own_values & self._states.values.keys())),
            opened=tuple(sorted(loop.opened)),
            used=self.names.used(loop),
            broken_off=loop.broken_off,
            reopened=tuple(loop.reopened.values()),
        )
        value = list(loop.done) if loop.lasts else {"turns": loop.turns}
        measures = Measures(barrier=loop.barrier, work_s=loop.work_s)
        return StateSnapshot(
            uid=loop.uid, kind=loop.kind, run=self._states.run, value=value, measures=measures, loop=detail
        )

    def _hold(self, loop: Loop) -> None:
        """Let other checkpoints hold the values as they are now, and of a history's item no writes, until the present turn is finished.

        If the script is still to come to turns that they hold, they have the values that those turns have left.
        """
        self._states.hold_values(self._restored_values if self.waiting.states() else self._states.values)
        self._sinks.hold_back(on=loop.lasts)

    def _close(self) -> None:
        """Let checkpoints hold what the script sets from now on, unless it is still to come to turns that they hold."""
        self._open, self._attempt.activity.turn = None, ""
        self._states.hold_values(self._restored_values if self.waiting.states() else None)
        self._sinks.hold_back(on=False)

    # -- outside of loops --------------------------------------------------------------------------------------------

    def _refuse_inside(self, other: Loop) -> None:
        if loop := self._current():
            raise WrongUse(
                f"{other.name} begins inside of a turn of {loop.name}. Turns of loops do not lie in each other. Iterate over all pairs in"
                f" one loop, such as itertools.product(...). If {loop.name} was left by break, do not keep its iterator in a variable"
            )

    def left(self, *, ended: bool = False) -> None:
        """Close the loop that the script has left by ``break``. ``ended``: the script has ended, so it has left any loop.

        Raises ``WrongUse`` if that was in the middle of an item of a history, or before what its turn has left was stored.
        """
        loop = self._open
        if loop is None or (self._held() is not None and not ended):
            return
        if loop.lasts and loop.effects:
            raise WrongUse(
                f"{loop.name} was left in the turn of {items.shown(loop.item)}, after the turn had changed state or written rows. Nobody"
                " knows whether the item is done: the next run would do it again. Let the turn end before break, or break before it"
                " changes anything. If an error has ended the turn, or its rows could not be stored, do not catch that error"
            )
        if loop.effects:
            self._broken_off = loop.uid
        self._close()

    def save(self, barrier: str, *, ended: bool = False) -> None:
        """Store the frames that have changed since a barrier, unless the script is in a turn. ``ended``: store all frames.

        The script goes on with its own plans. A retry runs the turns since the newest barrier again; the next run begins with these rows.
        They are not stored yet if the script is still to come to turns that the checkpoint holds: these rows do not have what they left.
        """
        self.left(ended=ended)
        if ended:
            self._states.hold_values(None)
        elif self._open or self.waiting.states():
            return
        if frames := self._frames.unsaved(changed=not ended):
            self._store(barrier, frames)
        if ended:
            self.waiting.rewind_frames(ended=True)

    def _store(self, barrier: str, frames: Iterable[OpenedFrame]) -> None:
        self._attempt.writer.check_not_fenced()
        with self._attempt.file_sets.stage("", {}):
            stored = self._frames.write(frames)
            for one in stored:
                self._checkpointer.beside(one.rows.proof.begin)
            self._checkpointer.await_in_flight()
            with self._states.lock:
                self._frames.take_over(stored, cut=False)
                records = self._frames.stored_records(barrier, stored, self.waiting.details())
                self._states.hold(records, _proofs(stored))


def _proofs(stored: Iterable[StoredFrame]) -> dict[str, Proof]:
    return {one.rows.file_set.path: one.rows.proof for one in stored}
