"""The names under which turns and the script open states: a wrong one is refused before turns are stored. Runs in the Spark driver.

A finished turn counts only together with what it has left. If it has left that under a wrong name, the corrected script takes the turn for
done, and nobody sees its changes again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from airflow_checkpoint_provider.coordinator.assignment import Allowed, decided_by_name, refuse_wrong_names, undecided
from airflow_checkpoint_provider.protocol.metadata import ONCE, LoopDetail, StateSnapshot, kind_in_words
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.wording import run_start
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.loops.turns import Loop
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.text import loop_messages

New = Mapping[str, Collection[str]]
"""The uids that the script uses and with which the run did not begin, by kind."""


class LoopNames:
    """What turns and the script of one attempt have opened. ``allowed`` is the job's decision on unused states."""

    def __init__(self, attempt: Attempt, states: States, allowed: Allowed) -> None:
        self._attempt, self._states, self._allowed = attempt, states, allowed
        self.opened_in_turns: set[str] = set()  # uids of what finished turns have opened: no turn need open them again
        self._opened_now: set[str] = set()  # those of the turns of this attempt
        # uids of the frames and values that turns of another application have left, and of what only they have opened in this run
        self._left_by_others: set[str] = set()
        self._opened_by_others: set[str] = set()
        self._opened_by_this: set[str] = set()  # uids of what turns of this run and this application have opened

    # -- loops -------------------------------------------------------------------------------------------------------

    def go_on(self, loop: Loop, detail: LoopDetail, *, changed: bool) -> None:
        """Note what the finished turns of a loop have opened. ``changed``: they are those of another application."""
        loop.opened, loop.used_before, loop.changed = set(detail.opened), set(detail.used), changed
        self.opened_in_turns |= loop.opened
        if changed:
            self._left_by_others |= {*detail.frames, *detail.own_values}
        if detail.turns:
            loop.used = set() if changed else set(detail.used)
            self._opened_by_others |= loop.opened - loop.used
            self._opened_by_this |= loop.opened & loop.used

    def finish_turn(self, loop: Loop) -> None:
        """Note what the present turn has opened. What the script now opens before the turn is no longer left to turns."""
        opened = self._states.opened() - loop.open_before
        self._opened_now |= opened
        loop.opened = (loop.opened | opened) - (loop.open_before - self._opened_now)
        self.opened_in_turns |= loop.opened

    def used(self, loop: Loop) -> tuple[str, ...]:
        """Return what this application has opened in this run up to the present turn."""
        return tuple(sorted(loop.used | self._states.opened()))

    def in_use(self) -> set[str]:
        """Return the uids of what finished turns have opened, except those that the job's decision lists.

        A retry does not run the finished turns of its run again. What the same script has opened in them is in use in spite of the list, as
        it is without a crash.
        """
        listed = decided_by_name(self.opened_in_turns, self._allowed)
        return self.opened_in_turns - (listed - self._opened_by_this)

    # -- wrong names -------------------------------------------------------------------------------------------------

    def check(self, loop: Loop) -> None:
        """Raise ``NonRestoredState`` if the script has opened a new state in place of a restored one: the corrected script would take the
        turns for done, and what they have read or changed would not be its state.

        What turns open may have names of their own. So it is compared only with what the script had opened outside of turns, when it came
        to the newest turn. Registered objects have no state before their first barrier, and are compared at the end.
        """
        new = self._states.new(self._states.object_states)
        unclaimed = self._states.unclaimed_of_earlier_runs()
        old = [
            state for state in unclaimed if state.kind != ONCE or not loop.known.isdisjoint(map(canonical, state.value))
        ]
        self.refuse_wrong(old, {kind: set(uids) - self.opened_in_turns for kind, uids in new.items()}, loop.name)
        used = [state for state in old if state.uid in loop.used_before]
        self.refuse_wrong(used, {kind: self._opened_now & set(uids) for kind, uids in new.items()}, loop.name)
        if loop.changed:
            self._say_other_names(loop, new)

    def refuse_wrong(self, unclaimed: Iterable[StateSnapshot], new: New, loop: str | None = None) -> None:
        """Raise ``NonRestoredState`` if the script may use one of the ``new`` states in place of one of an earlier run, or a new frame or
        value in place of one that finished turns of another application have left. What turns of any loop have opened is in its place.
        """
        old = [state for state in unclaimed if state.uid not in self.opened_in_turns]
        refuse_wrong_names(old, new, self._allowed, loop, self.opened_in_turns)
        left = self._left_by_others - self.opened_in_turns
        others = [state for state in self._states.unclaimed() if state.uid in left]
        refuse_wrong_names(others, self._states.new_in_attempt(), self._allowed)

    def _say_other_names(self, loop: Loop, new: New) -> None:
        """Say once which new states the script may use in place of those that turns of another application have opened.

        Nobody knows: only some turns may open them, or each under a name of its own.
        """
        before = loop.used_before & loop.opened
        missing = [state for state in self._undecided() if state.uid in before and new.get(state.kind)]
        if not missing:
            return
        loop.changed = False
        found = sorted((uid, kind) for kind in {state.kind for state in missing} for uid in new[kind])
        say(loop_messages.other_names(loop.uid, _named(missing), _in_words(found), self._again))

    def say_left(self) -> None:
        """Say what only turns of another application have opened in this run, at the end of the script."""
        earlier = {state.uid for state in self._states.unclaimed_of_earlier_runs()}
        missing = [state for state in self._undecided() if state.uid in self._opened_by_others - earlier]
        if missing:
            say(loop_messages.not_used_by_this_version(_named(missing), self._again))

    def _undecided(self) -> list[StateSnapshot]:
        """Return the restored states that the script has not used so far, and on which the job has decided nothing."""
        unclaimed = {state.uid: state for state in self._states.unclaimed()}
        return [unclaimed[uid] for uid in undecided(unclaimed, self._allowed)]

    @property
    def _again(self) -> str:
        return run_start(self._attempt.journal.state)


def _named(states: Iterable[StateSnapshot]) -> list[str]:
    return _in_words((state.uid, state.kind) for state in states)


def _in_words(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return pairs of uid and kind for a line."""
    return [f"{kind_in_words(kind)} '{uid}'" for uid, kind in pairs]
