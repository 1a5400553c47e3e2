"""Where to start: what ``restore=`` means, which candidates there are, and whether the chosen one is whole. Runs anywhere.

Restore never guesses. The restore point is a function of the state; what is looked at here decides only whether it may be
used. "Denied", "absent" and "damaged" are three errors, and none of them is ever taken for "nothing to restore".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.assignment import renamed
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, state_entries
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.files import verify
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.savepoint_target import Savepoint, open_savepoint
from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged, InvalidName, SavepointDisposed
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.commands import Restore
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from airflow_checkpoint_provider.protocol.keys import (
    History,
    Keys,
    Pointer,
    SavepointPointer,
    checkpoint_id,
    pointer_of,
)
from airflow_checkpoint_provider.protocol.metadata import Seal
from airflow_checkpoint_provider.protocol.state import ABORTED, CONDEMNED, PENDING, RETAINED, Checkpoint, State
from airflow_checkpoint_provider.storage.base import Store


@dataclass(frozen=True)
class Candidate:
    """One line of the restore story. ``verdict`` is chosen, rejected or older; ``files`` is None if they were not counted."""

    checkpoint: Checkpoint
    verdict: str
    why: str = ""
    files: int | None = 0


@dataclass(frozen=True)
class Restored:
    """The chosen point, read and verified; ``seal`` is None where an attempt starts from nothing.

    The file sets of the seal lie at ``keys`` in ``store``: of a savepoint at its target, whoever made it.
    """

    point: Point | None = None
    seal: Seal | None = None
    store: Store | None = None
    keys: Keys | None = None
    candidates: tuple[Candidate, ...] = ()

    @property
    def above(self) -> int:
        """The id of what comes from elsewhere, above which this history goes on to count."""
        return self.seal.id if self.seal and self.point and self.point.pointer else 0


def resolve(restore: str, state: State, store: Store) -> Point | None:
    """What ``restore=`` names: None for "latest" and "none"; else a point that exists and is retained.

    ``restore`` may be an id of this history (``"7"``, ``"chk-7"``) or a pointer, to a checkpoint of any history
    (``<root>/jobs/…/chk-7``) or to a savepoint's directory. One that leads to what this history made is an id.
    """
    if restore in ("latest", "none"):
        return None
    number = checkpoint_id(restore)
    if number is not None:
        return _own(number, state, restore)
    try:
        pointer = pointer_of(restore)
    except InvalidName:
        raise InvalidName(
            f'restore={restore!r}: write "latest", "none", the id of a checkpoint of this history, or a pointer: <root>/jobs/…/chk-7,'
            " or the directory of a savepoint"
        ) from None
    if isinstance(pointer, SavepointPointer):
        return _saved(pointer, state, store)
    here = History(state.job, state.scope or None, state.item).prefix if state.job else None
    if pointer.prefix == here and store.beside(pointer.root).uri == store.uri:
        return _own(pointer.id, state, restore)
    located(pointer, store)
    return Point(pointer=str(pointer))


def id_above(point: Point | None, home: Store) -> int:
    """The id of what ``point`` leads to outside of its history, which must be there; 0 if it does not lead there."""
    if point is None or point.pointer is None:
        return 0
    pointer = pointer_of(point.pointer)
    return pointer.id if isinstance(pointer, Pointer) else open_savepoint(pointer, home).seal.id


def _saved(pointer: SavepointPointer, state: State, store: Store) -> Point:
    """A copy of this history's own, elsewhere, is as good as a stranger's. So is one that it has forgotten; until then anybody
    who tidies up may delete it."""
    savepoint = open_savepoint(pointer, store)
    where = str(SavepointPointer(savepoint.store.uri, pointer.name))
    own = next((one for one in state.with_status(RETAINED, CONDEMNED) if one.target == where), None)
    if own and own.status == CONDEMNED:
        raise SavepointDisposed(
            f"{where} (chk-{own.id}) is being deleted; nothing was changed. Name another checkpoint"
        )
    return Point(id=own.id) if own else Point(pointer=where)


def _named(where: str, state: State, run: str, store: Store) -> tuple[Point | None, dict[str, str]]:
    """The point that a deliberate restore names, besides what ``resolve`` knows: "latest", and "run-start" of a run. These bring
    the names along under which the job knows the states."""
    if where == "latest":
        point = state.restore_point()
        return point, state.branch.rename if point == state.branch.base else {}
    if where != "run-start":
        return resolve(where, state, store), {}
    found = state.run(run)
    if found is None:
        raise CheckpointNotFound(
            f"run {run!r} is not listed any more, so the checkpoint from which it started is unknown; name a checkpoint"
        )
    return found.started_from, found.rename


class GoingBack:
    """A deliberate restore: what is named is looked for in the state on which the journal decides, and verified there."""

    def __init__(self, coordinator: Coordinator, where: str, run: str) -> None:
        self._coordinator, self._where, self._run = coordinator, where, run
        self.state = State()
        self.restored = Restored()
        self._names: dict[str, str] = {}

    def look(self, state: State) -> Point | None:
        """Return the verified point. Raise ``CheckpointNotFound``, ``Damaged``."""
        base, self._names = _named(self._where, state, self._run, self._coordinator.store)
        if self.state.n < 0 or base != self.restored.point:
            self.restored = examine(self._coordinator, state, base)
        self.state = state
        return base

    def names(self, rename: Mapping[str, str]) -> dict[str, str]:
        """All new names of the point's states, by those that stand in it; ``rename`` says what is new.

        Raises ``StateNotFound``, ``RenameConflict``.
        """
        names = {**self._names, **rename}
        renamed(self.restored.seal.states if self.restored.seal else {}, names)
        return names

    def command(self, token: Token, by: str, reason: str, *, claim: bool, rename: Mapping[str, str]) -> Restore:
        """Return the command that restores the point of the last look."""
        return Restore(
            token=token,
            base=self.restored.point,
            by=by,
            reason=reason,
            above=self.restored.above,
            claimed=claim,
            rename=self.names(rename),
        )


def _own(number: int, state: State, restore: str) -> Point:
    found = state.checkpoint(number)
    if found is None or found.status != RETAINED:
        raise CheckpointNotFound(
            f"restore={restore!r}: {_gone(state, found)}; `checkpoints list {state.job or 'JOB'}` shows what this history holds"
        )
    return Point(id=number)


def located(pointer: Pointer, home: Store, *, pending: bool = False) -> tuple[Coordinator, Checkpoint]:
    """The completed checkpoint behind a pointer, through its journal: a directory alone says nothing.

    Its store is reached as the one ``home`` is. ``pending``: one that has no outcome yet will do, too.
    """
    store = home.beside(pointer.root)
    coordinator = Coordinator(Journal(store, Keys(pointer.prefix), By("reader", "", "")))
    state = coordinator.journal.catch_up()
    found = state.checkpoint(pointer.id)
    if state.n < 0:
        raise CheckpointNotFound(
            f"{pointer}: there is no history at {pointer.prefix}; `checkpoints jobs` lists the jobs of a root"
        )
    if found is None or not (found.status == RETAINED or (pending and found.status == PENDING)):
        raise CheckpointNotFound(f"{pointer}: {_gone(state, found)}")
    return coordinator, found


def _gone(state: State, found: Checkpoint | None) -> str:
    if found is None:
        return "this history never made, or no longer lists, such a checkpoint"
    if found.status == ABORTED:
        return f"it was aborted ({found.reason}) at {found.ended_at}"
    if found.status == PENDING:
        return "it is not completed yet; wait for it, or name an older one"
    ended = state.runs[-1].ended_at if state.runs and state.scope else None
    when = f"it was deleted with its run, which ended at {ended}" if ended else "it was deleted by its retention policy"
    return f"{when}; retention=KeepWithin(days=7) keeps it next time"


def examine(coordinator: Coordinator, state: State, point: Point | None) -> Restored:
    """Verify ``point`` and return each candidate, newest first, with the reason. Raise ``Damaged``."""
    if point is None:
        return Restored(candidates=_unsealed(state.checkpoints, 0))
    if point.pointer is not None:
        return _from_elsewhere(point, pointer_of(point.pointer), coordinator.store)
    found = state.checkpoint(point.id)
    if found is None or found.status != RETAINED:
        raise Damaged(f"chk-{point.id} is the restore point, but the journal does not list it any more")
    seal, files = verified(coordinator, found)
    older = tuple(
        Candidate(one, "older") for one in sorted(state.retained, key=lambda one: -one.id) if one.id < found.id
    )
    candidates = (*_unsealed(state.checkpoints, found.id), Candidate(found, "chosen", "", files), *older)
    return Restored(point, seal, *place(coordinator, found), candidates)


@dataclass(frozen=True)
class Opened:
    """The verified checkpoint or savepoint behind a pointer. ``files`` files of its seal lie at ``keys`` in ``store``."""

    checkpoint: Checkpoint
    seal: Seal
    store: Store
    keys: Keys
    files: int


def open_pointer(pointer: Pointer | SavepointPointer, home: Store, *, pending: bool = False) -> Opened:
    """Return what a pointer leads to, after its digest, file names and sizes were compared.

    Its store is reached as ``home`` is. A savepoint is read without a journal. With ``pending`` a checkpoint that is
    acknowledged and not sealed yet is returned, too. Raises ``CheckpointNotFound``, ``SavepointDisposed``, ``Damaged``.
    """
    if isinstance(pointer, SavepointPointer):
        savepoint = open_savepoint(pointer, home)
        files = savepoint.verify()
        return Opened(_as_listed(savepoint), savepoint.seal, savepoint.store, savepoint.keys, files)
    coordinator, checkpoint = located(pointer, home, pending=pending)
    seal, files = verified(coordinator, checkpoint)
    return Opened(checkpoint, seal, *place(coordinator, checkpoint), files)


def _from_elsewhere(point: Point, pointer: Pointer | SavepointPointer, home: Store) -> Restored:
    opened = open_pointer(pointer, home)
    chosen = Candidate(opened.checkpoint, "chosen", "named by restore=", opened.files)
    return Restored(point, opened.seal, opened.store, opened.keys, (chosen,))


def _as_listed(savepoint: Savepoint) -> Checkpoint:
    """As its journal listed it, which may not be there any more: nobody knows when that was."""
    seal = savepoint.seal
    return Checkpoint(
        id=seal.id, epochs=seal.epochs, branch=seal.branch, plan=seal.plan,
        request=Request(token="", kind=seal.kind, origin=""), timeout_s=0.0, triggered_at="", status=RETAINED, digest=savepoint.digest,
        bytes=savepoint.bytes, states=state_entries(seal), target=str(savepoint.pointer),
    )  # fmt: skip


def place(coordinator: Coordinator, checkpoint: Checkpoint) -> tuple[Store, Keys]:
    """Return where the file sets of a completed checkpoint lie: below its history; for a savepoint, at its target."""
    if checkpoint.target is None:
        return coordinator.store, coordinator.keys
    pointer = SavepointPointer.parse(checkpoint.target)
    return coordinator.store.beside(pointer.root), pointer.keys


def _unsealed(checkpoints: Iterable[Checkpoint], above: int) -> tuple[Candidate, ...]:
    """Return aborted and pending checkpoints that are newer than the chosen one, each with the reason why it is passed over."""
    newer = [one for one in checkpoints if one.id > above and not one.completed_at]
    return tuple(Candidate(one, "rejected", "never sealed") for one in sorted(newer, key=lambda one: -one.id))


def recalled(state: State, point: Point | None, epoch: int) -> Restored:
    """Return the candidates of attempt ``epoch``, which began at ``point``, from the journal alone. No file is examined."""
    number = point.id if point and point.pointer is None else None
    earlier = sorted((one for one in state.checkpoints if max(one.epochs) < epoch), key=lambda one: -one.id)
    chosen = [Candidate(one, "chosen", "", None) for one in earlier if one.id == number]
    older = [
        Candidate(one, "older", "" if one.status == RETAINED else "deleted by now")
        for one in earlier
        if number and one.id < number and one.completed_at
    ]
    return Restored(point, candidates=(*_unsealed(earlier, number or 0), *chosen, *older))


def verified(coordinator: Coordinator, checkpoint: Checkpoint) -> tuple[Seal, int]:
    """Return the seal and the number of files after comparing digest, names and sizes. It costs one listing per file set."""
    try:
        seal, _ = coordinator.contents(checkpoint)
        files = verify(*place(coordinator, checkpoint), seal.states.values())
    except Damaged as error:
        state = coordinator.state
        older = max((one.id for one in state.retained if one.id < checkpoint.id), default=None)
        advice = f"chk-{older} is the next older one" if older else "there is no older one"
        where = f"chk-{older}" if older else "run-start"
        raise Damaged(
            f"chk-{checkpoint.id} cannot be restored: {error.message}. {advice}. Nothing was changed."
            f" To start from another checkpoint: {wording.restore(state, where)}"
        ) from None
    return seal, files
