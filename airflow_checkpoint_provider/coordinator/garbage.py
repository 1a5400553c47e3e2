"""The checkpoints and folders that a history no longer needs, and their deletion. Runs anywhere.

``plan`` returns the garbage, ``collect`` deletes it. Any process may call either repeatedly, and finishes interrupted
deletions. Checkpoints and claimed savepoints that no policy keeps go in three steps, so that nobody restores from a checkpoint that
is half deleted:
1. *condemn*: an entry names them.
2. *delete*: their files.
3. *forget*: an entry drops them.

``remove_orphans`` deletes folders that nothing refers to, and the files that aborted savepoints have left at their targets.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TypeVar

from airflow_checkpoint_provider.coordinator import savepoint_target
from airflow_checkpoint_provider.coordinator.compaction import compact
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.errors import AlreadyClaimed, CheckpointError, Held, NotItsClaim, StoreError
from airflow_checkpoint_provider.location import fence
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, CONDEMNED, PENDING, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.decisions import decide
from airflow_checkpoint_provider.protocol.deletion import held, held_claims, policy_of
from airflow_checkpoint_provider.protocol.keys import QUERY, STATE, Keys, SavepointPointer, file_set_epoch
from airflow_checkpoint_provider.protocol.lifetime import open_checkpoints, outlived
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import apply
from airflow_checkpoint_provider.storage.base import Store, exists

_CHECKPOINT = re.compile(r"chk-([1-9][0-9]*)")

IDS_OF_ENTRY, CLAIMS_OF_ENTRY = 1000, 20  # that one entry condemns or forgets: its events have a limit

T = TypeVar("T")
Access = Callable[[], AbstractContextManager[Coordinator]]
"""Gives the coordinator to one thread at a time: while entries are written, never while files are deleted."""
Check = Callable[[], object]
"""Raises if this process must delete nothing more. Called before each checkpoint and each folder."""


def unshared(coordinator: Coordinator) -> Access:
    """Return access to a coordinator that no other thread uses."""
    return lambda: contextlib.nullcontext(coordinator)


def unchecked() -> None:
    """Let this process delete everything that is due."""


# -- what is garbage -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retired:
    """Ids of checkpoints, and pointers of claimed savepoints."""

    ids: tuple[int, ...] = ()
    claims: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ids or self.claims)

    def parts(self) -> Iterator[Retired]:
        """Yield parts that fit into one entry each."""
        for begin in range(0, len(self.ids), IDS_OF_ENTRY):
            yield Retired(ids=self.ids[begin : begin + IDS_OF_ENTRY])
        for begin in range(0, len(self.claims), CLAIMS_OF_ENTRY):
            yield Retired(claims=self.claims[begin : begin + CLAIMS_OF_ENTRY])

    def __or__(self, other: Retired) -> Retired:
        return Retired(tuple(sorted({*self.ids, *other.ids})), tuple(sorted({*self.claims, *other.claims})))


@dataclass(frozen=True)
class Garbage:
    """The parts of one history that are no longer needed.

    ``retired`` may be condemned, ``condemned`` was condemned before and is not deleted yet, ``orphans`` are keys of
    folders. ``close`` says that the history itself may be closed once the checkpoints are deleted.
    """

    retired: Retired
    condemned: Retired
    orphans: tuple[str, ...]
    close: bool

    @property
    def deletable(self) -> Retired:
        return self.retired | self.condemned

    def __bool__(self) -> bool:
        return bool(self.deletable or self.orphans or self.close)


def plan(state: State, now: str, folders: Iterable[str] = ()) -> Garbage:
    """Return what is garbage at ``now``, a UTC time in ISO format; pure.

    ``state`` comes from a complete read. Orphans are searched among ``folders``, as ``folders_of`` lists them;
    without them none is found, and no request to the store is needed.
    """
    retired, condemned = _retired(state, now), _condemned(state)
    unfinished = state.closing and not state.closed
    close = unfinished or closable(state, now, without=(retired | condemned).ids)
    return Garbage(retired, condemned, tuple(_orphans(state, folders)), close)


def _retired(state: State, now: str) -> Retired:
    """Return the checkpoints and claims that no rule holds. Savepoints belong to the user: no policy deletes them."""
    moment = datetime.fromisoformat(now)
    ids = {checkpoint.id for checkpoint in state.retained if not checkpoint.savepoint}
    claims = {claim.pointer for claim in state.claims if claim.status == RETAINED}
    return Retired(tuple(sorted(ids - held(state, moment))), tuple(sorted(claims - held_claims(state, moment))))


def _condemned(state: State) -> Retired:
    ids = (checkpoint.id for checkpoint in state.with_status(CONDEMNED))
    claims = (claim.pointer for claim in state.claims if claim.status == CONDEMNED)
    return Retired(tuple(sorted(ids)), tuple(sorted(claims)))


def closable(state: State, now: str, without: Collection[int] = ()) -> bool:
    """Return whether the history may be closed, once the checkpoints ``without`` are deleted."""
    open_ids = {checkpoint.id for checkpoint in open_checkpoints(state)}.difference(without)
    return not state.closing and not open_ids and outlived(state, policy_of(state), datetime.fromisoformat(now))


def folders_of(store: Store, keys: Keys) -> Iterator[str]:
    """List the folders of states and of checkpoints, relative to the history.

    A state's folder is ``<kind>/<uid>/<epoch>-<nonce>``; an attempt writes every kind of state into one. Cost: a
    listing, one for each kind that is there, and one for each uid. Locations of queries that were emptied are left out.
    """
    top = list(store.folders(keys.prefix))
    for kind in [kind for kind in (STATE, QUERY) if kind in top]:
        for uid in store.folders(f"{keys.prefix}/{kind}"):
            folder = f"{keys.prefix}/{kind}/{uid}"
            for name in fence.not_deleted(store, folder) if kind == QUERY else store.folders(folder):
                yield f"{kind}/{uid}/{name}"
    yield from top


def _orphans(state: State, folders: Iterable[str]) -> Iterator[str]:
    """Yield the folders to which nothing will refer again: of attempts that are over, and of checkpoints that were
    never triggered.

    A deleter that was suspended relies on this lemma: an attempt that is over acknowledges nothing that can still
    complete, and later attempts refer only to the files of checkpoints or to their own.
    """
    paths = state.paths()
    named = state.locations().union(paths[number] for number in state.named())
    alive = {checkpoint.id for checkpoint in state.with_status(PENDING, RETAINED, CONDEMNED)}
    for folder in folders:
        if found := _CHECKPOINT.fullmatch(folder):
            orphaned = int(found[1]) < state.next_id and int(found[1]) not in alive
        else:
            orphaned = folder not in named and _epoch(folder) > 0 and state.deletable(folder)
        if orphaned:
            yield folder


def _epoch(folder: str) -> int:
    """Return the epoch of the attempt that wrote a state's folder; 0 for any other folder."""
    if folder.count("/") != 2:
        return 0
    try:
        return file_set_epoch(folder)
    except ValueError:
        return 0


def folders_to_delete(state: State, garbage: Garbage, now: str) -> tuple[str, ...]:
    """Return the folders that ``collect`` would delete, relative to the history; pure. Claimed savepoints lie elsewhere."""
    condemning = decide(state, c.Condemn(ids=garbage.retired.ids, claims=garbage.retired.claims, now=now))
    for event in condemning if isinstance(condemning, tuple) else ():
        state = apply(state, event)
    checkpoints = [checkpoint for checkpoint in state.checkpoints if checkpoint.id in garbage.deletable.ids]
    file_sets = sorted(set(_unreferenced(state, checkpoints)))
    seals = (f"chk-{checkpoint.id}" for checkpoint in checkpoints)
    return tuple(dict.fromkeys((*seals, *file_sets, *garbage.orphans)))


def _unreferenced(state: State, checkpoints: Iterable[Checkpoint]) -> Iterator[str]:
    """Yield the paths of the file sets of ``checkpoints`` that are deleted with them."""
    paths, referred = state.paths(), state.referred()
    for number in chain.from_iterable(checkpoint.file_sets for checkpoint in checkpoints):
        path = paths.get(number)
        if path and number not in referred and state.deletable(path):
            yield path


# -- collecting it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collected:
    """The ids of the deleted checkpoints, and the number of deleted orphans."""

    ids: tuple[int, ...] = ()
    leftovers: int = 0


def collect(access: Access, now: str) -> Collected:
    """Remove orphans, retire, and compact. Raises the first error after everything deletable was deleted.

    Deletions that need no entry come first: on a full disk they make room for the entries.
    """
    try:
        leftovers = remove_orphans(access)
    except CheckpointError:
        retire(access, now)
        raise
    return Collected(retire(access, now), leftovers)


def retire(access: Access, now: str) -> tuple[int, ...]:
    """Condemn the retired checkpoints, delete and forget the condemned ones. Compact the journal if that is due.

    Needs no listing. Returns the ids that were forgotten. Raises ``Fenced`` for an attempt that is over, and the
    first error of a deletion after everything else was deleted.
    """
    try:
        with access() as coordinator:
            condemn(coordinator, now)
    except StoreError:
        delete_condemned(access, now)  # by an earlier entry: it may make room for this one
        raise
    return delete_condemned(access, now)


def delete_condemned(access: Access, now: str, check: Check = unchecked) -> tuple[int, ...]:
    """Compact the journal if that is due. Delete and forget all condemned checkpoints. Return the forgotten ids.

    They are deleted and forgotten in parts that fit into one entry each: a process may end before it has deleted all. Raises as ``retire``
    does, and what ``check`` raises.
    """
    with access() as coordinator:
        state = coordinator.state
    if coordinator.journal.wrote_boundary:
        compact(coordinator.journal)
    forgotten, errors = list[int](), list[CheckpointError]()
    for part in _condemned(state).parts():
        deleted = delete(coordinator.store, coordinator.keys, state, part, now, check)
        errors += deleted.failed
        try:
            with access() as coordinator:
                forgotten += forget(coordinator, deleted.retired)
        except StoreError as error:  # a later call deletes this part once more, and forgets it then
            errors.append(error)
    if errors:
        raise errors[0]
    return tuple(forgotten)


def condemn(coordinator: Coordinator, now: str) -> State:
    """Write the entries that condemn the retired checkpoints. Return the state that lists all condemned ones."""
    for part in _retired(coordinator.state, now).parts():
        with contextlib.suppress(Held):  # one of them is needed again meanwhile: the next run deletes the others
            coordinator.journal.append(c.Condemn(ids=part.ids, claims=part.claims, now=now, epoch=coordinator.epoch))
    return coordinator.state


@dataclass(frozen=True)
class Deleted:
    """The result of a deletion: the deleted checkpoints, and the errors of the others."""

    retired: Retired
    failed: tuple[CheckpointError, ...]


def delete(store: Store, keys: Keys, state: State, part: Retired, now: str, check: Check = unchecked) -> Deleted:
    """Delete the files of a ``part`` of the checkpoints that are condemned in ``state``. An error does not prevent the other deletions.

    It may take long and needs no journal: nothing refers again to a checkpoint that is condemned in the state that ``condemn`` returned.
    """
    ids = frozenset(part.ids)
    condemned = [checkpoint for checkpoint in state.with_status(CONDEMNED) if checkpoint.id in ids]
    checkpoints, errors = _try_each(
        condemned, check, lambda checkpoint: _delete_checkpoint(store, keys, checkpoint, state, now)
    )
    claims, more_errors = _try_each(part.claims, check, lambda text: _delete_own(store, keys, text, state, now))
    return Deleted(Retired(tuple(checkpoint.id for checkpoint in checkpoints), claims), (*errors, *more_errors))


def _try_each(
    items: Iterable[T], check: Check, delete: Callable[[T], None]
) -> tuple[tuple[T, ...], tuple[CheckpointError, ...]]:
    """Return the items that need no other try, and the errors: a file may have a name that cannot be deleted, or a savepoint another owner.
    Raises what ``check`` raises.
    """
    deleted, errors = list[T](), list[CheckpointError]()
    for item in items:
        check()
        try:
            delete(item)
            deleted.append(item)
        except NotItsClaim as error:  # another try would raise it again
            deleted.append(item)
            errors.append(error)
        except CheckpointError as error:
            errors.append(error)
    return tuple(deleted), tuple(errors)


def delete_folders(
    store: Store, keys: Keys, folders: Iterable[str], check: Check
) -> tuple[tuple[str, ...], tuple[CheckpointError, ...]]:
    """Delete folders of a history, relative to it. Return those that were deleted, and the errors of the others."""
    return _try_each(folders, check, lambda folder: _delete_folder(store, keys, folder))


def _delete_folder(store: Store, keys: Keys, folder: str) -> None:
    """Delete a folder of a history. The fence of a query's location stays."""
    if folder.startswith(f"{QUERY}/"):
        fence.delete_location(Location(store, f"{keys.prefix}/{folder}"))
    else:
        store.delete_under(f"{keys.prefix}/{folder}")


def _delete_checkpoint(store: Store, keys: Keys, checkpoint: Checkpoint, state: State, now: str) -> None:
    """Delete the seal first, so that a partly deleted checkpoint is none; then the acknowledgements; then unreferenced file
    sets.

    If the disposal of a savepoint was interrupted, delete its files at the target too, unless another history has claimed it.
    """
    if checkpoint.target:
        with contextlib.suppress(AlreadyClaimed):
            _finish_disposal(store, checkpoint.target, state, now)
    store.delete([keys.seal(checkpoint.id)])
    store.delete_under(keys.checkpoint(checkpoint.id))
    for path in _unreferenced(state, [checkpoint]):
        store.delete_under(keys.file_set(path))


def _finish_disposal(store: Store, text: str, state: State, now: str) -> None:
    pointer = SavepointPointer.parse(text)
    target = store.beside(pointer.root, limited=False)
    savepoint_target.finish_disposal(target, pointer, f"the history of {state.job}", now)


def _delete_own(store: Store, keys: Keys, text: str, state: State, now: str) -> None:
    """Delete a claimed savepoint, if it lies where savepoints may lie: a journal can name any place."""
    pointer = SavepointPointer.parse(text)
    owner, by = keys.folder(store.uri), f"the history of {state.job}"
    savepoint_target.delete_own(store.beside(pointer.root), pointer, owner, by, now, state.incarnation)


def forget(coordinator: Coordinator, deleted: Retired) -> tuple[int, ...]:
    """Write the entry that forgets the deleted checkpoints. Return the forgotten ids."""
    if deleted:
        coordinator.journal.append(c.Forget(ids=deleted.ids, claims=deleted.claims, epoch=coordinator.epoch))
    return deleted.ids


def remove_orphans(access: Access, at_most: int | None = None, check: Check = unchecked) -> int:
    """Delete at most ``at_most`` folders to which nothing refers, and the files of aborted savepoints at their targets.

    Returns the number of folders. Needs no lock while it deletes: nothing refers to an orphan again. Raises the first
    error after everything else was deleted.
    """
    with access() as coordinator:
        state = coordinator.state
    store, keys = coordinator.store, coordinator.keys
    orphans = [*_orphans(state, folders_of(store, keys))][:at_most]
    deleted, errors = delete_folders(store, keys, orphans, check)
    delete_targets(store, state, check)
    if errors:
        raise errors[0]
    return len(deleted)


def delete_targets(store: Store, state: State, check: Check = unchecked) -> None:
    """Delete the files of all aborted savepoints at their targets. Raises the first error after everything else was deleted."""
    _, errors = _try_each(state.with_status(ABORTED), check, lambda checkpoint: delete_target(store, checkpoint))
    if errors:
        raise errors[0]


def delete_target(store: Store, aborted: Checkpoint) -> None:
    """Delete the files of an aborted savepoint at its target, and of no other checkpoint.

    Each name at a target is used once, so everything below it belongs to this savepoint. An aborted one was never published: a directory
    that holds ``_metadata`` is another savepoint, whatever the journal says.
    """
    if aborted.savepoint:
        pointer = target_of(aborted)
        target = store.beside(pointer.root, limited=False)
        if not exists(target, pointer.metadata):
            target.delete_under(pointer.name)
