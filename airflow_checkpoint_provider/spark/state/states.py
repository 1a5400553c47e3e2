"""The states of one attempt: restored, changed by the script, acknowledged. Runs in the Spark driver."""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_checkpoint_provider.coordinator.assignment import check_kind, unclaimed
from airflow_checkpoint_provider.protocol.metadata import (
    FILES,
    OF_RUN,
    QUERY,
    REGISTERED,
    ROWS,
    STAGE,
    VALUE,
    FilesDetail,
    Measures,
    Provenance,
    Seal,
    StageDetail,
    StateSnapshot,
    digest_of_stages,
)
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.state.carrying import LASTING, began_with, of_next_run, of_other_history
from airflow_checkpoint_provider.spark.state.snapshot import (
    FilesProof,
    ProvedSnapshot,
    Records,
    Snapshot,
    StoredSnapshot,
)


@dataclass(frozen=True)
class ValueDifference:
    """A value that differs between the script and a reused stage: the stage has stored another one."""

    uid: str
    now: Any
    stored: Any
    why_kept: str
    """The reason why ``now`` counts. If it is empty, ``stored`` counts."""


@dataclass
class States:
    """The states of one attempt.

    ``snapshots`` begins with every state of the restore point. A state that the script has not reached yet stays in each
    new acknowledgement as it was restored. Stages belong to a run, so those of another run are dropped here.

    Values follow the script: they begin as they were when the *run* began, and a stage that an unchanged application reuses sets them to
    their values at its barrier. A changed application sets them anew. States of registered objects do not follow it: they begin as they
    were restored, and change at each barrier.
    """

    run: str
    snapshots: dict[str, StateSnapshot] = field(default_factory=dict)
    run_values: dict[str, Any] = field(default_factory=dict)
    run_objects: tuple[str, ...] = ()  # uids of the registered objects' states with which the run began
    values: dict[str, Any] = field(default_factory=dict)
    claimed_values: set[str] = field(default_factory=set)  # uids of the values that the script uses
    # uids of the values that this program made: it has set them in this attempt, or an earlier attempt of it has stored them
    own_values: set[str] = field(default_factory=set)
    claimed_queries: set[str] = field(default_factory=set)  # uids of the streaming queries that the script started
    claimed_loops: dict[str, str] = field(default_factory=dict)  # uid of a loop or a frame that the script uses -> kind
    # The values that checkpoints hold while turns run that a retry runs again; None: those of the script
    held_values: dict[str, Any] | None = None
    # Of registered objects, at the last barrier; None: no state
    object_states: dict[str, Any] = field(default_factory=dict)
    handed_out: dict[str, str] = field(
        default_factory=dict
    )  # uid -> newest file set of each stage, in the script's order
    dropped: set[str] = field(default_factory=set)  # uids of restored states that were dropped on purpose
    begun_with: frozenset[str] = frozenset()  # uids of the states with which this attempt began
    # Path of a new stage's file set -> the snapshot that completes the stage's record in ``snapshots``
    _incomplete: dict[str, Snapshot] = field(default_factory=dict)
    _proofs: dict[str, FilesProof] = field(default_factory=dict)  # path of a frame's new file set -> its proof
    # Held while states are pinned: the script may take checkpoints in several threads
    lock: threading.RLock = field(default_factory=threading.RLock)
    _differences: dict[str, ValueDifference] = field(default_factory=dict)  # the newest one of each value
    # Values and states of objects at the script's last barrier
    _at_barrier: tuple[dict[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}))
    _completed: bytes = b""  # fingerprint of the newest completed checkpoint, to tell whether anything changed

    @classmethod
    def restored(cls, seal: Seal | None, run: str, *, elsewhere: bool = False) -> States:
        """Return the states with which an attempt of ``run`` begins.

        ``elsewhere``: the seal belongs to another history, whose runs may have the same names. Then all counts as changed.
        """
        if seal is None:
            return cls(run)
        own_run, carry = (None, of_other_history) if elsewhere else (run, of_next_run)
        kept = {
            uid: carried
            for uid, state in seal.states.items()
            if (carried := state if state.run == own_run else carry(state, run))
        }
        same_run = [ack for ack in seal.applications.values() if ack.run == own_run]
        run_values = {uid: value for ack in same_run for uid, value in ack.run_values.items()}
        run_objects = tuple(uid for ack in same_run for uid in ack.run_objects)
        if not same_run:
            run_values = {uid: state.value for uid, state in kept.items() if state.kind == VALUE}
            run_objects = tuple(sorted(uid for uid, state in kept.items() if state.kind == REGISTERED))
        completed = b"" if elsewhere else _fingerprint(seal.states)
        states = cls(
            run, kept, run_values, run_objects, dict(run_values), begun_with=frozenset(kept), _completed=completed
        )
        if any(state.loop and state.loop.turns for state in kept.values()):
            states.hold_values({uid: state.value for uid, state in kept.items() if state.kind == VALUE})
        return states

    # -- the script uses a state -------------------------------------------------------------------------------------

    def stage(self, uid: str, kind: str = STAGE) -> tuple[StateSnapshot, StageDetail] | None:
        """Return the restored or computed stage of that uid; None if it was cut into parts and is not now, or the other way round.

        Raises ``KindChanged``.
        """
        snapshot = self.snapshots.get(uid)
        if snapshot and snapshot.kind not in ROWS:
            check_kind(snapshot, kind)
        return (snapshot, snapshot.stage) if snapshot and snapshot.stage and snapshot.kind == kind else None

    def folder(self, uid: str) -> tuple[StateSnapshot, FilesDetail] | None:
        """Return the restored or written folder of that uid. Raises ``KindChanged``."""
        snapshot = self.snapshots.get(uid)
        if snapshot:
            check_kind(snapshot, FILES)
        return (snapshot, snapshot.files) if snapshot and snapshot.files else None

    def claim_value(self, uid: str) -> None:
        """Note that the script uses the value of that uid. Raises ``KindChanged``."""
        if snapshot := self.snapshots.get(uid):
            check_kind(snapshot, VALUE)
        self.claimed_values.add(uid)

    def claim_query(self, uid: str) -> StateSnapshot | None:
        """Return the restored query of that uid, and note that the script uses it. Raises ``KindChanged``."""
        snapshot = self.snapshots.get(uid)
        if snapshot:
            check_kind(snapshot, QUERY)
        self.claimed_queries.add(uid)
        return snapshot

    def claim_loop(self, uid: str, kind: str) -> StateSnapshot | None:
        """Return the restored loop or frame of that uid, and note that the script uses it. Raises ``KindChanged``."""
        snapshot = self.snapshots.get(uid)
        if snapshot:
            check_kind(snapshot, kind)
        self.claimed_loops[uid] = kind
        return snapshot

    def register(self, uid: str) -> Any:
        """Return a copy of the restored state of the object that the script registers. Raises ``KindChanged``."""
        if snapshot := self.snapshots.get(uid):
            check_kind(snapshot, REGISTERED)
        self.object_states[uid] = snapshot.value if snapshot else None
        return copy.deepcopy(self.object_states[uid])

    def hand_out(self, snapshot: StateSnapshot, incomplete: Snapshot | None = None) -> None:
        """Note that the script has passed the end of a stage, whether its rows were reused or computed.

        :param incomplete: completes the record of the stage at the next barrier.
        """
        with self.lock:
            self.snapshots[snapshot.uid] = snapshot
            self.handed_out[snapshot.uid] = snapshot.identity
            if incomplete:
                self._incomplete[snapshot.file_sets[-1].path] = incomplete

    def hold(self, states: Iterable[StateSnapshot], proofs: Mapping[str, FilesProof] | None = None) -> None:
        """Take over loops and frames as they are now. Call it with ``lock`` held, so that a checkpoint has all of them or none.

        :param proofs: path of a new file set -> the proof that gives its rows.
        """
        for state in states:
            self.snapshots[state.uid] = state
            self.dropped.discard(state.uid)
            if state.loop:
                self.handed_out[state.uid] = state.identity
        self._proofs |= proofs or {}

    def finish_turns(self, uids: Collection[str]) -> set[str]:
        """Drop the states that finished turns have computed: no retry runs these turns again. Return the paths of their files."""
        with self.lock:
            paths = {path for uid in uids for path in _paths(self.snapshots[uid])}
            for path in paths:
                self._incomplete.pop(path, None)
            self.drop(uids)
            for uid in uids:
                del self.handed_out[uid]
            return paths

    def hold_values(self, values: Mapping[str, Any] | None) -> None:
        """Let checkpoints hold these values, until the turns that run now are finished; None: those of the script."""
        with self.lock:
            self.held_values = None if values is None else dict(values)

    def set_value(self, uid: str, value: Any) -> None:
        """Change a value, as the script says."""
        self.values[uid] = value
        self.own_values.add(uid)

    def values_now(self) -> tuple[dict[str, Any], set[str]]:
        """Return the values as they are now, and the uids of those that this program made, for ``put_back``."""
        return dict(self.values), set(self.own_values)

    def put_back(self, before: tuple[dict[str, Any], set[str]]) -> None:
        """Set all values as they were before. The script holds objects that read this dict, so it is not replaced."""
        values, own_values = before
        with self.lock:
            self.values.clear()
            self.values.update(values)
            self.own_values = set(own_values)

    def replay_values(self, detail: Provenance, application: str) -> tuple[ValueDifference, ...]:
        """Set the values as they were at the barrier of a reused stage, if ``application`` has stored it. Return nothing then.

        Else the script's new code counts: a value that it has set stays, and one that it has not set gets the stored value. Return
        the values where the two differ. If an earlier stage was computed again, all values stay.
        """
        same_rows = detail.earlier_stages == digest_of_stages(self.handed_out.values())
        changed = detail.application != application
        if same_rows and not changed:
            self.values |= detail.values
            self.own_values |= detail.values.keys()
            return ()
        why = "the application changed" if changed else "a stage before it was computed again"
        compared = self.claimed_values & detail.values.keys() & (self.claimed_values if same_rows else self.own_values)
        found = [
            ValueDifference(uid, self.values.get(uid), detail.values[uid], why if uid in self.own_values else "")
            for uid in sorted(compared)
            if uid not in self.values or canonical(self.values[uid]) != canonical(detail.values[uid])
        ]
        new = tuple(one for one in found if self._differences.get(one.uid) != one)
        self._differences |= {one.uid: one for one in found}
        self.values |= {one.uid: one.stored for one in found if not one.why_kept}
        return new

    # -- the script does not use a state -----------------------------------------------------------------------------

    def opened(self) -> frozenset[str]:
        """Return the uids of the values, frames, loops and objects that the script has used so far."""
        return frozenset(self.claimed_values | self.claimed_loops.keys() | self.object_states.keys())

    def unclaimed(self) -> tuple[StateSnapshot, ...]:
        """Return the restored states that the script has not used so far."""
        claimed = self.handed_out.keys() | self.claimed_queries | self.opened()
        return tuple(self.snapshots[uid] for uid in unclaimed(self.snapshots, claimed))

    def unclaimed_of_earlier_runs(self) -> tuple[StateSnapshot, ...]:
        """Return the unclaimed values and registered objects' states with which this run began."""
        known = {
            *self.run_values,
            *self.run_objects,
            *(uid for uid, state in self.snapshots.items() if began_with(state)),
        }
        return tuple(state for state in self.unclaimed() if state.kind not in OF_RUN and state.uid in known)

    def unfinished_values(self) -> tuple[str, ...]:
        """Return the values, frames and done items that earlier attempts of this run have made, and this attempt has not: no finished
        attempt has them. What turns that count have left is none of them: nobody runs these turns again.
        """
        finished = self.run_values.keys() | (self.claimed_values & self.values.keys())
        left = self._left_by_turns()
        return tuple(
            uid
            for uid, state in self.snapshots.items()
            if uid not in left
            and (
                (state.kind == VALUE and uid not in finished)
                or (state.kind in LASTING and not began_with(state) and uid not in self.claimed_loops)
            )
        )

    def _left_by_turns(self) -> set[str]:
        loops = [state.loop for state in self.snapshots.values() if state.loop and state.loop.turns]
        return {uid for loop in loops for uid in (*loop.frames, *loop.own_values, *loop.opened)}

    def unused_stages(self) -> tuple[str, ...]:
        """Return the uids of the restored stages that the script has not used so far."""
        with self.lock:
            stages = {uid for uid, snapshot in self.snapshots.items() if snapshot.kind in OF_RUN}
            return tuple(sorted(stages - self.handed_out.keys()))

    def completing(self, uid: str) -> Snapshot | None:
        """Return the snapshot that completes the record of a new stage; None if a completed checkpoint holds it."""
        with self.lock:
            return self._completing(self.snapshots[uid])

    def complete_records(self) -> tuple[StateSnapshot, ...]:
        """Return the records that a checkpoint may hold as they are: those of new stages only after one has completed."""
        with self.lock:
            return tuple(record for record in self.snapshots.values() if not self._completing(record))

    def new(self, hooks: Collection[str]) -> dict[str, Collection[str]]:
        """Return the uids that the script uses and with which this run did not begin, by kind.

        :param hooks: uids of the registered objects that have no state.
        """
        known = {uid for uid, state in self.snapshots.items() if began_with(state)}
        return {
            **{kind: uids for kind, uids in self._lasting_but(known).items() if uids},
            VALUE: self.claimed_values - self.run_values.keys(),
            REGISTERED: self.object_states.keys() - {*self.run_objects, *hooks},
        }

    def new_in_attempt(self) -> dict[str, Collection[str]]:
        """Return the values, frames, tables and loops of a history that the script uses and with which this attempt did not begin, by kind."""
        return {**self._lasting_but(self.begun_with), VALUE: self.claimed_values - self.begun_with}

    def _lasting_but(self, known: Collection[str]) -> dict[str, Collection[str]]:
        claimed = self.claimed_loops.items()
        return {kind: {uid for uid, its in claimed if its == kind and uid not in known} for kind in LASTING}

    def drop(self, uids: Collection[str]) -> None:
        """Leave states out of all later acknowledgements, even if a checkpoint that holds them completes later."""
        for uid in uids:
            del self.snapshots[uid]
            self.run_values.pop(uid, None)
        self.run_objects = tuple(uid for uid in self.run_objects if uid not in uids)
        self.dropped.update(uids)

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def pin(self, barrier: str, *, of_script: bool = True) -> Mapping[str, Snapshot]:
        """Return every state as it is now, at ``barrier``. Not ``of_script``: values and objects as at the script's last barrier."""
        with self.lock:
            if of_script:
                self._at_barrier = dict(self._pinned_values), dict(self.object_states)
            records = self.records(barrier, *self._at_barrier)
            return {record.uid: self._completing(record) or StoredSnapshot(record) for record in records}

    def _completing(self, record: StateSnapshot) -> Snapshot | None:
        """Return the snapshot that completes the record of a new stage; None for every other record."""
        if proofs := {path: proof for path in _paths(record) if (proof := self._proofs.get(path))}:
            return ProvedSnapshot(record, proofs)
        return self._incomplete.get(record.file_sets[-1].path) if record.file_sets else None

    @property
    def _pinned_values(self) -> dict[str, Any]:
        return self.values if self.held_values is None else self.held_values

    def records(
        self, barrier: str, values: Mapping[str, Any] | None = None, objects: Mapping[str, Any] | None = None
    ) -> Records:
        """Return the record of every state, with the current values and states of objects if none are given.

        The files of a new stage have no rows in it yet.
        """
        values = self._pinned_values if values is None else values
        objects = self.object_states if objects is None else objects
        with self.lock:
            current = {uid: snapshot for uid, snapshot in self.snapshots.items() if uid not in objects}
        for uid in self.claimed_values & values.keys():
            current[uid] = self._inline(uid, VALUE, values[uid], barrier)
        for uid, state in objects.items():
            if state is not None:
                current[uid] = self._inline(uid, REGISTERED, state, barrier)
        return tuple(current[uid] for uid in sorted(current))

    def finished(self, uid: str, state: Any, barrier: str) -> StateSnapshot:
        """Return the record of the state of a registered object that was finished beside the script."""
        with self.lock:
            self.object_states[uid] = state
            return self._inline(uid, REGISTERED, state, barrier)

    def _inline(self, uid: str, kind: str, value: Any, barrier: str) -> StateSnapshot:
        before = self.snapshots.get(uid)
        if before and before.kind == kind and canonical(before.value) == canonical(value):
            return before
        return StateSnapshot(uid=uid, kind=kind, run=self.run, value=value, measures=Measures(barrier=barrier))

    def completed(self, states: Mapping[str, StateSnapshot]) -> None:
        """Remember the states in a completed checkpoint: they are not new in a later one."""
        with self.lock:
            for uid, state in states.items():
                current = self.snapshots.get(uid)
                if uid not in self.dropped and (
                    current is None or current.kind in (VALUE, QUERY) or _rows(current) == _rows(state)
                ):
                    self.snapshots[uid] = state
                    for path in _rows(state):
                        self._incomplete.pop(path, None)
                        self._proofs.pop(path, None)
        self._completed = _fingerprint(states)

    def changed(self) -> bool:
        """Return whether a checkpoint taken now would differ from the newest completed one."""
        return _fingerprint({record.uid: record for record in self.records("")}) != self._completed


def new_in(number: int, state: StateSnapshot) -> StateSnapshot:
    """Return ``state`` for checkpoint ``number``. It is new in it if no completed checkpoint holds it yet."""
    return state if state.measures.checkpoint else replace(state, measures=replace(state.measures, checkpoint=number))


def _rows(state: StateSnapshot) -> list[str]:
    """Return the identities of the rows: a copy in a full checkpoint has the same ones."""
    return [file_set.identity for file_set in state.file_sets] + ([state.loop.path] if state.loop else [])


def _paths(state: StateSnapshot) -> list[str]:
    return [file_set.path for file_set in state.file_sets]


def _fingerprint(states: Mapping[str, StateSnapshot]) -> bytes:
    if not states:
        return b""
    return canonical(
        [[uid, [file_set.path for file_set in state.file_sets], state.value] for uid, state in sorted(states.items())]
    )
