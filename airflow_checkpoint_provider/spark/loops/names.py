"""The names under which turns and the script open states: a wrong one is refused before turns are stored. Runs in the Spark driver.

A finished turn counts only together with what it has left. If it has left that under a wrong name, the corrected script takes the turn for
done, and nobody sees its changes again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from airflow_checkpoint_provider.coordinator.assignment import Allowed, refuse_wrong_names
from airflow_checkpoint_provider.protocol.metadata import ONCE, LoopDetail, StateSnapshot
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.loops.turns import Loop
from airflow_checkpoint_provider.spark.state.states import States


class LoopNames:
    """What turns and the script of one attempt have opened. ``allowed`` is the job's decision on unused states."""

    def __init__(self, states: States, allowed: Allowed) -> None:
        self._states, self._allowed = states, allowed
        self.opened_in_turns: set[str] = set()  # uids of what finished turns have opened: no turn need open them again
        self._left_by_others: set[str] = set()  # uids of the frames that turns of another application have left

    def go_on(self, detail: LoopDetail, *, changed: bool) -> None:
        """Note what the finished turns of a loop have opened. ``changed``: they are those of another application."""
        self.opened_in_turns |= set(detail.opened)
        if changed:
            self._left_by_others |= detail.frames.keys()

    def finish_turn(self, loop: Loop) -> None:
        """Note what the present turn has opened."""
        loop.opened |= self._states.opened() - loop.open_before
        self.opened_in_turns |= loop.opened

    def check(self, loop: Loop) -> None:
        """Raise ``NonRestoredState`` if the script has opened a new state in place of a restored one: the corrected script would take the
        turns for done, and what they have read or changed would not be its state. What turns open may have names of their own.
        Registered objects have no state before their first barrier, and are compared at the end.
        """
        new = {
            kind: set(uids) - self.opened_in_turns
            for kind, uids in self._states.new(self._states.object_states).items()
        }
        unclaimed = self._states.unclaimed_of_earlier_runs()
        old = [
            state for state in unclaimed if state.kind != ONCE or not loop.known.isdisjoint(map(canonical, state.value))
        ]
        self.refuse_wrong(old, new, loop.name)

    def refuse_wrong(
        self, unclaimed: Iterable[StateSnapshot], new: Mapping[str, Collection[str]], loop: str | None = None
    ) -> None:
        """Raise ``NonRestoredState`` if the script may use one of the ``new`` states in place of one of an earlier run, or a new frame in
        place of one that finished turns of another application have left. What turns of any loop have opened is in its place.
        """
        old = [state for state in unclaimed if state.uid not in self.opened_in_turns]
        refuse_wrong_names(old, new, self._allowed, loop)
        left = self._left_by_others - self.opened_in_turns
        others = [state for state in self._states.unclaimed() if state.frame and state.uid in left]
        refuse_wrong_names(others, self._states.new_in_attempt(), self._allowed)
