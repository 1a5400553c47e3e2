"""The states of one attempt: what was restored, what the script reached since, what is acknowledged. Runs in the Spark driver."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_checkpoint_provider.coordinator.assignment import check_kind, unclaimed
from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.protocol.metadata import Measures, Seal, StageDetail, StateSnapshot
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.state.snapshot import Records, Snapshot, StoredSnapshot

LARGEST_VALUE = 64 * 1024  # bytes of JSON
REGISTERED = "registered"
"""The kind of the states that registered objects keep."""


@dataclass
class States:
    """``snapshots`` begins with every state of the restore point: those the script has not reached yet are in each new
    acknowledgement as they were restored. Stages belong to a run: another run's are left behind here.

    Values follow the script: they begin as they were when the *run* began, and a reused barrier sets them to what they
    were when it was passed. What registered objects say of themselves does not: it begins as it was restored, and is
    what they said at the last barrier.
    """

    run: str
    snapshots: dict[str, StateSnapshot] = field(default_factory=dict)
    run_values: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # values that the script has asked for
    said: dict[str, Any] = field(default_factory=dict)  # by each registered object, at the last barrier; None: no state
    handed_out: dict[str, str] = field(default_factory=dict)  # uid -> file set of each stage, in the script's order
    dropped: set[str] = field(default_factory=set)  # restored, and left behind on purpose
    _completed: bytes = b""  # what the newest completed checkpoint holds, to tell whether anything changed

    @classmethod
    def restored(cls, seal: Seal | None, run: str, *, elsewhere: bool = False) -> States:
        """``elsewhere``: the seal is another history's, whose runs may have the same names. Nothing of it is ours yet."""
        if seal is None:
            return cls(run)
        mine = None if elsewhere else run
        kept = {uid: state for uid, state in seal.states.items() if state.kind != "stage" or state.run == mine}
        same_run = [ack for ack in seal.applications.values() if ack.run == mine]
        begun = {uid: value for ack in same_run for uid, value in ack.run_values.items()}
        if not same_run:
            begun = {uid: state.value for uid, state in kept.items() if state.kind == "value"}
        return cls(run, kept, begun, dict(begun), _completed=b"" if elsewhere else _fingerprint(seal.states))

    # -- reaching ----------------------------------------------------------------------------------------------------

    def stage(self, uid: str) -> tuple[StateSnapshot, StageDetail] | None:
        """The restored or computed stage of that name. Raises ``KindChanged``."""
        found = self.snapshots.get(uid)
        if found:
            check_kind(found, "stage")
        return (found, found.stage) if found and found.stage else None

    def ask(self, uid: str) -> None:
        """The script asks for the value of that name. Raises ``KindChanged``."""
        if found := self.snapshots.get(uid):
            check_kind(found, "value")
        self.asked.add(uid)

    def register(self, uid: str) -> Any:
        """The script registers an object of that name: what was restored of it, a copy. Raises ``KindChanged``."""
        if found := self.snapshots.get(uid):
            check_kind(found, REGISTERED)
        self.said[uid] = found.value if found else None
        return copy.deepcopy(self.said[uid])

    def reached(self, snapshot: StateSnapshot) -> None:
        """The script has passed the end of a stage, whether its rows were reused or computed."""
        self.snapshots[snapshot.uid] = snapshot
        self.handed_out[snapshot.uid] = snapshot.file_sets[0].identity

    def replay_values(self, detail: StageDetail) -> None:
        """At a reused barrier; only if its inputs are those of the attempt that passed it, else the script's own stand."""
        if detail.before == self.handed_out:
            self.values |= detail.values

    def set_value(self, uid: str, value: Any) -> None:
        self.values[uid] = as_restored(f"value '{uid}'", value)

    # -- not reached -------------------------------------------------------------------------------------------------

    def unclaimed(self) -> tuple[StateSnapshot, ...]:
        """What was restored and the script has not asked for so far."""
        claimed = self.handed_out.keys() | self.asked | self.said.keys()
        return tuple(self.snapshots[uid] for uid in unclaimed(self.snapshots, claimed))

    def drop(self, uids: Collection[str]) -> None:
        """No later acknowledgement holds them, whatever earlier one of this attempt completes yet."""
        for uid in uids:
            del self.snapshots[uid]
            self.run_values.pop(uid, None)
        self.dropped.update(uids)

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def pin(self, barrier: str) -> tuple[Snapshot, ...]:
        """Return every state as it is now, at ``barrier``."""
        return tuple(StoredSnapshot(record) for record in self.records(barrier))

    def records(self, barrier: str) -> Records:
        """Return the record of every state as it is now."""
        current = {uid: one for uid, one in self.snapshots.items() if uid not in self.said}
        for uid in self.asked & self.values.keys():
            current[uid] = self._inline(uid, "value", self.values[uid], barrier)
        for uid, value in self.said.items():
            if value is not None:
                current[uid] = self._inline(uid, REGISTERED, value, barrier)
        return tuple(current[uid] for uid in sorted(current))

    def _inline(self, uid: str, kind: str, value: Any, barrier: str) -> StateSnapshot:
        before = self.snapshots.get(uid)
        if before and before.kind == kind and canonical(before.value) == canonical(value):
            return before
        return StateSnapshot(uid=uid, kind=kind, run=self.run, value=value, measures=Measures(barrier=barrier))

    def completed(self, states: Mapping[str, StateSnapshot]) -> None:
        """A checkpoint with ``states`` completed, if there are any: what it holds is not new any more."""
        if not states:
            return
        for uid, state in states.items():
            if uid in self.dropped:
                continue
            mine = self.snapshots.get(uid)
            if mine is None or mine.kind == "value" or _rows(mine) == _rows(state):
                self.snapshots[uid] = state
        self._completed = _fingerprint(states)

    def changed(self) -> bool:
        """Whether a checkpoint taken now would hold anything else than the newest completed one."""
        return _fingerprint({one.uid: one for one in self.records("")}) != self._completed


def new_in(number: int, state: StateSnapshot) -> StateSnapshot:
    """``state`` as checkpoint ``number`` holds it: what no completed one holds yet is new in it."""
    return state if state.measures.checkpoint else replace(state, measures=replace(state.measures, checkpoint=number))


def as_restored(what: str, value: Any) -> Any:
    """``value`` as a retry will read it, and nobody else's to change. ``what`` names it where it cannot be kept."""
    try:
        body = canonical(value)
    except (TypeError, ValueError) as error:
        raise InvalidConfig(
            f"{what}: {error}; a value is JSON (numbers, text, lists, dicts). Keep rows in a stage"
        ) from None
    if len(body) > LARGEST_VALUE:
        raise InvalidConfig(f"{what} has {len(body)} bytes of JSON, {LARGEST_VALUE} are allowed; keep rows in a stage")
    return json.loads(body)


def _rows(state: StateSnapshot) -> list[str]:
    """Equal for the same rows, also where a full checkpoint has copied them."""
    return [file_set.identity for file_set in state.file_sets]


def _fingerprint(states: Mapping[str, StateSnapshot]) -> bytes:
    if not states:
        return b""
    return canonical(
        [[uid, [file_set.path for file_set in state.file_sets], state.value] for uid, state in sorted(states.items())]
    )


class Value:
    """Small JSON state in the driver. It follows the script: see ``CheckpointedJob.value``."""

    def __init__(self, states: States, uid: str, default: Any, check: Callable[[], None]) -> None:
        self._states, self._uid, self._default, self._check = states, uid, default, check

    def get(self) -> Any:
        """A copy: changing it changes nothing until ``set``."""
        return copy.deepcopy(self._states.values.get(self._uid, self._default))

    def set(self, value: Any) -> None:
        self._check()
        self._states.set_value(self._uid, value)
