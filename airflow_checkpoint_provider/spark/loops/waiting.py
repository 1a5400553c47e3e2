"""The loops that the script has still to come to: earlier attempts of the run have finished turns of them. Runs in the Spark driver.

A checkpoint holds their position together with all that their turns have left, or neither. If the script stores frames or ends without
them, their turns count no longer: those frames do not have what the turns have left.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import ONCE, LoopDetail, StateSnapshot
from airflow_checkpoint_provider.protocol.wording import run_start
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.loops import items
from airflow_checkpoint_provider.spark.loops.frames import Frames
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.state.carrying import before_the_run
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.text import loop_messages


class WaitingLoops:
    """The loops of the restore point with finished turns of this run that the script has not come to."""

    def __init__(self, attempt: Attempt, states: States, frames: Frames) -> None:
        self._attempt, self._states, self._frames = attempt, states, frames
        self._ended: set[str] = set()  # uids of the loops whose list has ended

    def states(self) -> list[StateSnapshot]:
        """Return their states."""
        return [
            state
            for uid, state in self._states.snapshots.items()
            if state.loop and state.loop.turns and uid not in self._states.handed_out
        ]

    def run_again(self, loops: Sequence[StateSnapshot], why: str) -> None:
        """Let the run do without the finished turns of loops, which the script comes to later."""
        for state in loops:
            turns, again = (state.loop.turns, _of_this_run(state)) if state.loop else (0, ())
            say(loop_messages.begins_anew(state.uid, turns, why, [items.shown(item) for item in again]))
        self._forget(loops, reopen=True)

    def leave_out(self, uids: Iterable[str]) -> None:
        """Let the run do without the finished turns of some of these loops, because the script has ended."""
        left = set(uids)
        loops = [state for state in self.states() if state.uid in left]
        for state in loops:
            if state.loop:
                say(loop_messages.left_out(state.uid, state.loop))
        self._forget(loops, reopen=False)

    def _forget(self, loops: Sequence[StateSnapshot], *, reopen: bool) -> None:
        """Let loops be as the run has begun with them. ``reopen``: remember the items that are open again, until they are done again."""
        with self._states.lock:
            kept = [again for state in loops if (again := self._before_the_run(state, reopen=reopen))]
            self._states.drop([state.uid for state in loops])
            for state in kept:
                self._states.snapshots[state.uid] = state
                self._states.dropped.discard(state.uid)

    def _before_the_run(self, state: StateSnapshot, *, reopen: bool) -> StateSnapshot | None:
        """Return the done items with which the run began, and those that are open again; None if there are none."""
        reopened = _of_this_run(state) if reopen else ()
        if state.kind != ONCE or not state.loop or not (state.loop.began or reopened):
            return None
        path = file_set_path(state.uid, self._attempt.epoch, secrets.token_hex(8))
        detail = replace(before_the_run(state.loop, state.loop.began), path=path, reopened=reopened)
        return replace(state, value=state.value[: state.loop.began], loop=detail)

    def end(self, uid: str) -> None:
        """Note that the list of a loop has ended. Raises ``ItemsChanged``."""
        self._ended.add(uid)
        self.refuse_open()

    def refuse_open(self) -> None:
        """Raise ``ItemsChanged`` if an item is still open again of a loop whose list has ended.

        An earlier attempt of the run had done it. So the next run need not give it again, and nobody would miss it.
        """
        for uid, reopened in self._open_again().items():
            if uid in self._ended:
                raise items.left_open(uid, reopened, run_start(self._attempt.journal.state))

    def say_open(self) -> None:
        """Name the items that are still open again of loops that the script has left before their list ended, or has not come to."""
        for uid, reopened in self._open_again().items():
            say(loop_messages.still_open(uid, [items.shown(item) for item in reopened]))

    def _open_again(self) -> dict[str, tuple[Any, ...]]:
        """Return the items that this run had done, and has not done again, by the uid of their loop."""
        states = self._states.snapshots.values()
        return {state.uid: state.loop.reopened for state in states if state.loop and state.loop.reopened}

    # -- frames ------------------------------------------------------------------------------------------------------

    def details(self) -> list[LoopDetail]:
        """Return all loops that the states hold now."""
        return [state.loop for state in self._states.snapshots.values() if state.loop]

    def rewind_frames(self, *, ended: bool = False) -> None:
        """Let the records of frames have no rows of turns that count no longer, and last the rows at which the script is.

        ``ended``: frames stay as they are that the job keeps for loops or for scripts to come.
        """
        with self._states.lock:
            stay = self._decided() if ended else set()
            frames, gone = self._frames.rewound(self.details())
            self._states.hold([frame for frame in frames if frame.uid not in stay])
            self._states.drop([uid for uid in gone if uid not in stay])

    def _decided(self) -> set[str]:
        """Return the uids of what the script has not come to, and what the job says is kept."""
        kept = (state.loop.frames for state in self.states() if state.kind == ONCE and state.loop)
        return {*self._states.unfinished_values(), *(uid for frames in kept for uid in frames)}


def _of_this_run(state: StateSnapshot) -> tuple[Any, ...]:
    """Return the items of a history that this run has done, and those that it has not done again."""
    if state.kind != ONCE or not state.loop:
        return ()
    return (*state.loop.reopened, *state.value[state.loop.began :])
