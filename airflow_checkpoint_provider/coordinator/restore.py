"""Restore points: the meaning of ``restore=``, the candidates, and the verification of the choice. Runs anywhere.

A restore never guesses. The restore point is a function of the state; the checks here only decide whether it may be
used. "Denied", "absent" and "damaged" are three errors; none of them means "nothing to restore".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, open_history, state_entries
from airflow_checkpoint_provider.coordinator.files import verify
from airflow_checkpoint_provider.coordinator.savepoint import is_at, is_gone, open_listed, target_of
from airflow_checkpoint_provider.coordinator.savepoint_target import Savepoint
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    CheckpointNotFound,
    Damaged,
    InvalidName,
    NotNamed,
    SavepointDisposed,
    StoreError,
    StoreMisconfigured,
)
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.checkpoint_records import (
    ABORTED,
    CONDEMNED,
    PENDING,
    RETAINED,
    Checkpoint,
    Completion,
)
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.keys import (
    History,
    Keys,
    Pointer,
    SavepointPointer,
    checkpoint_id,
    pointer_of,
)
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Launch
from airflow_checkpoint_provider.protocol.metadata import Seal
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Store, lies_in, same_root


@dataclass(frozen=True)
class Candidate:
    """A line of the restore story. ``verdict`` is chosen, rejected or older; ``files`` is None if they were not counted."""

    checkpoint: Checkpoint
    verdict: str
    why: str = ""
    files: int | None = 0


@dataclass(frozen=True)
class Restored:
    """The chosen point, read and verified. ``seal`` is None if an attempt starts from nothing.

    The file sets of the seal lie at ``keys`` in ``store``; those of a savepoint at its target, whichever history made it.
    """

    point: Point | None = None
    seal: Seal | None = None
    store: Store | None = None
    keys: Keys | None = None
    candidates: tuple[Candidate, ...] = ()
    outside: bool = False
    """Whether the point lies outside of the root and of the savepoint roots. A process reads it only if one of its options names it."""

    @property
    def chosen(self) -> Candidate | None:
        return next((candidate for candidate in self.candidates if candidate.verdict == "chosen"), None)

    @property
    def id_floor(self) -> int:
        """Return the id of a checkpoint of another history. The ids of this history continue above it."""
        return self.seal.id if self.seal and self.point and self.point.pointer else 0


def resolve(restore: str, state: State, store: Store, incarnation: str = "") -> Point | None:
    """Return the point that ``restore=`` names: None for "latest" and "none"; else a point that exists and is retained.

    ``restore`` may be an id of this history (``"7"``, ``"chk-7"``), a pointer to a checkpoint of any history
    (``<root>/jobs/…/chk-7``), or the directory of a savepoint. A pointer to a checkpoint of this history becomes its id.
    ``incarnation``: that of the history to which a pointer to a checkpoint leads, if it is known.
    """
    if restore in ("latest", "none"):
        return None
    number = checkpoint_id(restore)
    if number is not None:
        return _own_point(number, state, restore)
    try:
        pointer = pointer_of(restore)
    except InvalidName:
        raise InvalidName(
            f'{restore!r} is not a place to start from: write "latest", "none" (by hand also "run-start"), the id of a checkpoint of this'
            " history, a pointer <root>/jobs/…/chk-7, or the directory of a savepoint"
        ) from None
    if isinstance(pointer, SavepointPointer):
        return _savepoint_point(pointer, state, store)
    prefix = History(state.job, state.scope or None, state.item).prefix if state.job else None
    if pointer.prefix == prefix and same_root(store.beside(pointer.root).uri, store.uri):
        _refuse_another(pointer, state, incarnation)
        return _own_point(pointer.id, state, restore)
    locate_checkpoint(pointer, store, incarnation=incarnation)
    return Point(pointer=str(pointer))


def id_floor_of(point: Point | None, home: Store) -> int:
    """Return the id of another history's checkpoint to which ``point`` leads, else 0. Raises an error if it does not exist."""
    if point is None or point.pointer is None:
        return 0
    pointer = pointer_of(point.pointer)
    return pointer.id if isinstance(pointer, Pointer) else open_listed(pointer, home).seal.id


def _savepoint_point(pointer: SavepointPointer, state: State, store: Store) -> Point:
    """Return the point of a savepoint.

    A savepoint that this history lists becomes its id. A moved copy, or one that the history has forgotten, is
    treated as another history's.
    """
    savepoint = open_listed(pointer, store)
    where = str(SavepointPointer(savepoint.store.uri, pointer.name))
    listed = next(
        (
            checkpoint
            for checkpoint in state.with_status(RETAINED, CONDEMNED)
            if checkpoint.target and is_at(store, target_of(checkpoint), pointer)
        ),
        None,
    )
    if listed and listed.status == CONDEMNED:
        raise SavepointDisposed(
            f"{where} (chk-{listed.id}) is being deleted; nothing was changed. Name another checkpoint"
        )
    return Point(id=listed.id) if listed else Point(pointer=where)


def _own_point(number: int, state: State, restore: str) -> Point:
    checkpoint = state.checkpoint(number)
    if checkpoint is None or checkpoint.status != RETAINED:
        raise CheckpointNotFound(
            f"restore={restore!r}: {_absence(state, checkpoint)}; `{wording.list_of(state.job or 'JOB', state)}` shows what this history holds"
        )
    return Point(id=number)


def locate_checkpoint(
    pointer: Pointer, home: Store, *, pending: bool = False, incarnation: str = ""
) -> tuple[Coordinator, Checkpoint]:
    """Return the completed checkpoint of a pointer, with the coordinator of its history. Only a journal tells
    that it is completed.

    The credentials of ``home`` are used for its store. ``pending``: accept a pending checkpoint too. ``incarnation``: that of its history, if it
    is known.
    """
    store = home.beside(pointer.root)
    coordinator = open_history(store, pointer.prefix)
    state = coordinator.journal.catch_up()
    checkpoint = state.checkpoint(pointer.id)
    if state.n < 0:
        raise CheckpointNotFound(
            f"{pointer}: there is no history at {pointer.prefix}; `{wording.command('jobs')}` lists the jobs of a root"
        )
    _refuse_another(pointer, state, incarnation)
    if checkpoint is None or not (checkpoint.status == RETAINED or (pending and checkpoint.status == PENDING)):
        raise CheckpointNotFound(f"{pointer}: {_absence(state, checkpoint)}")
    return coordinator, checkpoint


def _refuse_another(pointer: Pointer, state: State, incarnation: str) -> None:
    if state.replaces(incarnation):
        raise CheckpointNotFound(f"{pointer}: {wording.ANOTHER_HISTORY}")


def _absence(state: State, checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "this history never made, or no longer lists, such a checkpoint"
    if checkpoint.status == ABORTED:
        return f"it was aborted ({checkpoint.reason}) at {checkpoint.ended_at}"
    if checkpoint.status == PENDING:
        return "it is not completed yet; wait for it, or name an older one"
    if checkpoint.savepoint:  # no policy deletes one
        return f"somebody has disposed of savepoint {checkpoint.target}, or claimed it for another job"
    ended = state.runs[-1].ended_at if state.runs and state.of_one_run else ""
    when = f"it was deleted with its run, which ended at {ended}" if ended else "it was deleted by its retention policy"
    return f"{when}; retention=KeepWithin(days=7) keeps it next time"


def examine(
    coordinator: Coordinator, state: State, point: Point | None, *, named: bool = False, told: str | None = None
) -> Restored:
    """Verify ``point`` and return each candidate, newest first, with the reason. Raises ``Damaged``.

    A point that nobody has ``named`` may be damaged if nothing is restored from it. ``told`` is the checkpoint that this process was told
    to restore. If the journal names another one outside of the root, ``NotNamed`` is raised.
    """
    if point is None:
        return Restored(candidates=_unsealed(state.checkpoints[::-1], 0))
    if point.pointer is not None:
        pointer, home = pointer_of(point.pointer), coordinator.store
        outside = not lies_in(home, home.beside(pointer.root))
        if outside and (told is None or _one_spelling(told, home) != _one_spelling(point.pointer, home)):
            raise _not_named(pointer, home, state)
        return replace(_from_elsewhere(point, pointer, home), outside=outside)
    chosen = state.checkpoint(point.id)
    if chosen is None or chosen.status != RETAINED:
        raise Damaged(f"chk-{point.id} is the restore point, but the journal does not list it any more")
    older = [Candidate(checkpoint, "older") for checkpoint in _older(state, chosen.id)]
    unsealed = _unsealed(state.checkpoints[::-1], chosen.id)
    try:
        seal, files = verified(coordinator, chosen)
    except Damaged as damage:
        if named or not _is_passed(state, chosen):
            raise
        why = f"and not needed, because its queries continue after it ({damage.message})"
        return Restored(point, candidates=(*unsealed, Candidate(chosen, "chosen", why, None), *older))
    return Restored(
        point, seal, *stored_at(coordinator, chosen), (*unsealed, Candidate(chosen, "chosen", "", files), *older)
    )


def _one_spelling(text: str, home: Store) -> str | None:
    """Return the pointer in ``text`` with its root as the store writes it; None if it names no place."""
    with contextlib.suppress(InvalidName, StoreMisconfigured):
        pointer = pointer_of(text)
        return str(replace(pointer, root=home.beside(pointer.root, limited=False).uri))
    return None


def _not_named(pointer: Pointer | SavepointPointer, home: Store, state: State) -> NotNamed:
    """Return the error for a restore point outside of the root, which only the journal names."""
    return NotNamed(
        f"the restore point is {pointer}, outside of {home.uri}. Only the journal says so, and nothing was read there. If it was restored on"
        f" purpose, name it: start once with restore={str(pointer)!r}, and write --from {pointer} on the command line. Or add its place to"
        f" savepoint_roots of the connection. To start elsewhere: {wording.restore(state, '…')}"
    )


def _is_passed(state: State, checkpoint: Checkpoint) -> bool:
    """Return True if a checkpoint holds only streaming queries, and each continues after its own newest batch."""
    names = state.branch.rename if state.branch.base == Point(id=checkpoint.id) else {}
    queries = [state.query(names.get(entry.uid, entry.uid)) for entry in checkpoint.states]
    return bool(queries) and all(query and not state.branch.goes_back(query) for query in queries)


@dataclass(frozen=True)
class OpenedPointer:
    """The verified checkpoint or savepoint of a pointer. The ``files`` files of its seal lie at ``keys`` in ``store``."""

    checkpoint: Checkpoint
    seal: Seal
    store: Store
    keys: Keys
    files: int


def open_pointer(
    pointer: Pointer | SavepointPointer,
    home: Store,
    *,
    pending: bool = False,
    deep: bool = False,
    incarnation: str = "",
) -> OpenedPointer:
    """Return the checkpoint of a pointer, after its digest and the names, sizes and footers of its files were compared.

    ``deep``: all pages of the files too. The credentials of ``home`` are used for its store. A savepoint is read without a
    journal. With ``pending``, a checkpoint that is acknowledged and not sealed yet is accepted too. ``incarnation`` is that of
    the history of a checkpoint, if it is known. Raises ``CheckpointNotFound``, ``SavepointDisposed``, ``Damaged``.
    """
    if isinstance(pointer, SavepointPointer):
        savepoint = open_listed(pointer, home)
        files = savepoint.verify(deep=deep)
        return OpenedPointer(_as_listed(savepoint), savepoint.seal, savepoint.store, savepoint.keys, files)
    coordinator, checkpoint = locate_checkpoint(pointer, home, pending=pending, incarnation=incarnation)
    seal, files = verified(coordinator, checkpoint, deep=deep)
    return OpenedPointer(checkpoint, seal, *stored_at(coordinator, checkpoint), files)


def _from_elsewhere(point: Point, pointer: Pointer | SavepointPointer, home: Store) -> Restored:
    opened = open_pointer(pointer, home)
    chosen = Candidate(opened.checkpoint, "chosen", "named by restore=", opened.files)
    return Restored(point, opened.seal, opened.store, opened.keys, (chosen,))


def _as_listed(savepoint: Savepoint) -> Checkpoint:
    """Return a savepoint as its journal listed it. The journal may not exist any more, so the times are unknown."""
    seal = savepoint.seal
    return Checkpoint(
        id=seal.id,
        epochs=seal.epochs,
        branch=seal.branch,
        plan=seal.plan,
        request=Request(token="", kind=seal.kind, origin=""),
        timeout_s=0.0,
        triggered_at="",
        target=str(savepoint.pointer),
        completion=Completion(
            at="",
            n=0,
            digest=savepoint.digest,
            bytes=savepoint.bytes,
            metadata_bytes=savepoint.metadata_bytes,
            states=state_entries(seal),
            barrier=seal.barrier,
        ),
    )


def stored_at(coordinator: Coordinator, checkpoint: Checkpoint) -> tuple[Store, Keys]:
    """Return where the file sets of a completed checkpoint lie: below its history; for a savepoint, at its target."""
    if checkpoint.target is None:
        return coordinator.store, coordinator.keys
    pointer = target_of(checkpoint)
    return coordinator.store.beside(pointer.root), pointer.keys


def _unsealed(newest_first: Iterable[Checkpoint], above: int) -> tuple[Candidate, ...]:
    """Return the aborted and pending checkpoints with ids above the chosen checkpoint, each with the reason to skip it."""
    return tuple(
        Candidate(checkpoint, "rejected", "never sealed")
        for checkpoint in newest_first
        if checkpoint.id > above and not checkpoint.completed_at
    )


def candidates_at_start(state: State, launch: Launch, attempt: AttemptRecord | None) -> Restored:
    """Return the candidates of an attempt, or of a launch without one, from the journal alone. No file is read."""
    point = attempt.restore_point if attempt else launch.restore_point
    epoch = attempt.epoch if attempt else state.last_epoch + 1
    number = point.id if point and point.pointer is None else None
    earlier = [checkpoint for checkpoint in reversed(state.checkpoints) if max(checkpoint.epochs) < epoch]
    chosen = [Candidate(checkpoint, "chosen", "", None) for checkpoint in earlier if checkpoint.id == number]
    older = [
        Candidate(checkpoint, "older", "" if checkpoint.status == RETAINED else "deleted since")
        for checkpoint in earlier
        if number and checkpoint.id < number and checkpoint.completed_at
    ]
    return Restored(point, candidates=(*_unsealed(earlier, number or 0), *chosen, *older))


def verified(coordinator: Coordinator, checkpoint: Checkpoint, *, deep: bool = False) -> tuple[Seal, int]:
    """Return the seal and the number of files, after comparing digest, names, sizes and footers; ``deep``: all pages too."""
    try:
        return _whole(coordinator, checkpoint, deep)
    except Damaged as error:
        raise unusable(coordinator, checkpoint, error, deep=deep) from None


def _whole(coordinator: Coordinator, checkpoint: Checkpoint, deep: bool) -> tuple[Seal, int]:
    seal, _ = coordinator.contents(checkpoint)
    return seal, verify(*stored_at(coordinator, checkpoint), seal.states.values(), deep=deep)


def unusable(
    coordinator: Coordinator, checkpoint: Checkpoint, damage: Damaged, *, file_set: str = "", deep: bool = False
) -> Damaged:
    """Return the error for a checkpoint that is damaged: it names the next older one that is whole, else the newest, and the command.

    ``file_set`` is the path of damaged rows whose names and sizes are right: a checkpoint that shares them is not whole either.
    """
    state, what, where = coordinator.state, "there is no other one that is whole", _beginning(coordinator.state)
    older = _older(state, checkpoint.id)
    passed = {checkpoint.id, *(other.id for other in older)}
    newer = tuple(other for other in state.newest_first() if other.id not in passed)
    if (whole := next(_whole_of(coordinator, older + newer, file_set, deep), None)) is not None:
        where, which = f"chk-{whole.id}", "next older" if whole in older else "newest"
        what = f"{where} is the {which} one that is whole"
    return Damaged(
        f"chk-{checkpoint.id} cannot be restored: {_why_unusable(coordinator, checkpoint, damage)}. {what}. Nothing was changed."
        f" To start elsewhere: {wording.restore(state, where)}"
    )


def _why_unusable(coordinator: Coordinator, checkpoint: Checkpoint, damage: Damaged) -> str:
    """Return what is wrong with a checkpoint. A directory that a person has moved is no damage."""
    with contextlib.suppress(CheckpointError):
        if checkpoint.target and checkpoint.published and is_gone(coordinator.store, target_of(checkpoint)):
            forget = wording.command("dispose", "--forget", checkpoint.target, state=coordinator.state)
            return (
                f"its directory {checkpoint.target} was moved or removed. To restore it, name the directory in which it is now. To let the"
                f" history forget it: {forget}"
            )
    return damage.message


def _beginning(state: State) -> str:
    """Return how a restore names the beginning of the newest run, or of the history, if the run began with a checkpoint of this history:
    that one is not whole, or is gone."""
    run = state.runs[-1] if state.runs else None
    own = run is None or (run.started_from is not None and run.started_from.pointer is None)
    return "none" if own else "run-start"


def _whole_of(
    coordinator: Coordinator, checkpoints: Iterable[Checkpoint], file_set: str, deep: bool
) -> Iterator[Checkpoint]:
    """Yield those of the checkpoints that are whole.

    A checkpoint that the store cannot read now is passed over: the error must name the damage, whatever else fails.
    """
    for checkpoint in checkpoints:
        with contextlib.suppress(Damaged, StoreError):
            if checkpoint.target or not holds(coordinator.contents(checkpoint)[0], file_set):
                _whole(coordinator, checkpoint, deep)
                yield checkpoint


def _older(state: State, number: int) -> tuple[Checkpoint, ...]:
    """Return the retained checkpoints that are older than checkpoint ``number``, newest first."""
    retained = state.newest_first()
    ids = [checkpoint.id for checkpoint in retained]
    return retained[ids.index(number) + 1 :] if number in ids else retained


def holds(seal: Seal, file_set: str) -> bool:
    """Return whether a state of ``seal`` refers to the file set at this path."""
    return any(stored.path == file_set for state in seal.states.values() for stored in state.file_sets)
