"""Operations on a savepoint that need journal and target: publish, claim, dispose. Runs anywhere.

The history that made a savepoint may still need it as a restore point. So a claim or a disposal asks that history
first, if it lies beside the savepoint. No history lists a savepoint that was moved out of its folder; but if the folder itself is not on
this host, the savepoint counts as listed: it may be the same one, below another mount.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_checkpoint_provider.coordinator import savepoint_target
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, open_history
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.histories import all_prefixes, jobs
from airflow_checkpoint_provider.coordinator.savepoint_target import DISPOSAL, Savepoint
from airflow_checkpoint_provider.errors import (
    AlreadyClaimed,
    CheckpointError,
    CheckpointNotFound,
    Damaged,
    Held,
    InvalidConfig,
    InvalidName,
    SavepointDisposed,
    StoreMisconfigured,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.decisions import decide
from airflow_checkpoint_provider.protocol.deletion import held
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.keys import JOBS, History, Pointer, SavepointPointer, check_prefix, pointer_of
from airflow_checkpoint_provider.protocol.metadata import Seal
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Store, exists, is_out_of_sight, same_root

ABANDONED = timedelta(days=1)  # a claim without its restore


@dataclass(frozen=True)
class Disposed:
    """The result of a disposal, or of its dry run. ``own`` says that its history was found and lists it."""

    pointer: SavepointPointer
    job: str
    files: int
    bytes: int
    own: bool


def publish_due(coordinator: Coordinator, only: int | None = None) -> tuple[int, ...]:
    """Publish each completed savepoint whose publication is not confirmed, and confirm it. Return the ids.

    Anybody may call it, again and again, on the state of a complete read. If one fails, the others are published
    first; then its error is raised. ``only``: publish only this checkpoint.
    """
    due = [
        checkpoint
        for checkpoint in coordinator.state.savepoints
        if not checkpoint.published and only in (None, checkpoint.id)
    ]
    failed: list[CheckpointError] = []
    for checkpoint in due:
        try:
            _publish(coordinator, checkpoint)
        except CheckpointError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return tuple(checkpoint.id for checkpoint in due)


def _publish(coordinator: Coordinator, checkpoint: Checkpoint) -> None:
    pointer, seal = target_of(checkpoint), coordinator.keys.seal(checkpoint.id)
    target = coordinator.store.beside(pointer.root)
    savepoint_target.put_metadata(coordinator.store, seal, checkpoint.digest, target, pointer)
    coordinator.journal.append(c.ConfirmPublished(id=checkpoint.id))


def target_of(checkpoint: Checkpoint) -> SavepointPointer:
    """Return the pointer to a savepoint's directory. Raises ``Damaged`` if the journal names none, as no process writes it."""
    if checkpoint.target is None:
        raise Damaged(
            f"the journal lists savepoint chk-{checkpoint.id} without its directory; somebody or something changed it"
        )
    return SavepointPointer.parse(checkpoint.target)


def suspending(state: State) -> Checkpoint | None:
    """Return the savepoint with which the job was stopped, if it is suspended and the savepoint is still listed."""
    stops = [savepoint for savepoint in state.savepoints if savepoint.suspends]
    return stops[-1] if state.suspended and stops else None


def claimable(point: Point | None) -> SavepointPointer:
    """Return the pointer of a savepoint of another history. Raises ``InvalidConfig`` for anything that cannot be claimed."""
    pointer = pointer_of(point.pointer) if point and point.pointer else None
    if not isinstance(pointer, SavepointPointer):
        raise InvalidConfig(
            f"{point or 'nothing'} is not a savepoint of another history and cannot be claimed: a history owns its own checkpoints."
            " Leave the claim out, or name the directory of a savepoint"
        )
    return pointer


def claim_before_restore(coordinator: Coordinator, state: State, restore: c.Restore, now: str) -> c.Restore:
    """Claim the savepoint of ``restore`` before the restore is written, and return ``restore``.

    Nothing is claimed if ``state`` refuses the restore.
    """
    if restore.claimed:
        pointer = claimable(restore.base)
        if not isinstance(decide(state, restore), c.Refusal):
            claim(coordinator, pointer, restore.by, now)
    return restore


def claim(
    coordinator: Coordinator, pointer: SavepointPointer, by: str, now: str, *, dry_run: bool = False
) -> Savepoint:
    """Claim a savepoint: from now on the history of ``coordinator`` owns it and may delete it.

    The history that made it forgets it, so that nobody restores it there while another history deletes it. Raises ``AlreadyClaimed``,
    ``Held`` while its own history needs it, and the errors of opening and verifying.
    """
    savepoint = open_listed(pointer, coordinator.store)
    savepoint_target.refuse_history(savepoint.store, pointer)
    incarnation = coordinator.state.incarnation
    savepoint_target.check_claim(savepoint.store, pointer, coordinator.folder, incarnation)
    origin = _own_history(coordinator.store, savepoint.seal, pointer)
    if origin is not None:
        _refuse_held(origin[0], origin[1], now)
    if dry_run:
        return savepoint
    savepoint_target.put_claim(savepoint.store, pointer, coordinator.folder, by, now, incarnation)
    savepoint.verify()
    if origin is not None:
        _condemn(*origin, by, now)
        _forget(*origin)
    return savepoint


def dispose(home: Store, text: str, by: str, now: str, *, dry_run: bool = False) -> Disposed:
    """Delete the savepoint at the pointer ``text``, and let its history forget it. A second disposal changes nothing.

    ``home`` is the store of its history. Raises ``Held`` while its history needs it, ``AlreadyClaimed``,
    ``CheckpointNotFound``, ``InvalidName`` for a checkpoint of a history, which its own policy deletes, and ``Damaged`` for a stub
    without a claim. Outside of the savepoint roots, only a savepoint that its history lists can be disposed of.
    """
    pointer = pointer_of(text)
    if isinstance(pointer, Pointer):
        raise InvalidName(
            f"{text} is not a savepoint: its history deletes it. See `{wording.command('prune', 'JOB')}` and retention="
        )
    _check_reach(home, pointer)
    try:
        savepoint = open_listed(pointer, home, limited=False)
    except SavepointDisposed:
        return _finish(home, pointer, by, now, dry_run=dry_run)
    # Its own history has forgotten a claimed savepoint.
    left = _is_left_by_its_owner(home, savepoint, now)
    origin = _own_history(home, savepoint.seal, pointer)
    if origin is not None:
        _refuse_held(origin[0], origin[1], now)
    files = [
        file for state in savepoint.seal.states.values() for file_set in state.file_sets for file in file_set.files
    ]
    disposed = Disposed(pointer, savepoint.seal.job, len(files), sum(file.bytes for file in files), origin is not None)
    if dry_run:
        return disposed
    if left:
        savepoint_target.take_over_claim(savepoint.store, pointer, by, now)
    savepoint_target.put_claim(savepoint.store, pointer, DISPOSAL, by, now)
    if origin is not None:
        _condemn(*origin, by, now)
    savepoint_target.delete_savepoint(savepoint.store, pointer, DISPOSAL, by, now)
    if origin is not None:
        _forget(*origin)
    return disposed


def _is_left_by_its_owner(home: Store, savepoint: Savepoint, now: str) -> bool:
    """Return whether the savepoint was claimed for a history in ``home`` that is gone or closed, or that never got the claim: its restore was
    killed before its entry. Raises ``AlreadyClaimed`` for any other owner, which may exist elsewhere.
    """
    try:
        savepoint_target.check_claim(savepoint.store, savepoint.pointer, DISPOSAL)
    except AlreadyClaimed as claimed:
        owner = _owner_below(home, claimed)
        if owner is None:
            raise
        if owner.n < 0 or owner.incarnation != (claimed.about["incarnation"] or owner.incarnation):
            _refuse_owner_of_another_host(home, claimed)
            return True
        if owner.closed or _is_abandoned(home, owner, savepoint.pointer, claimed.about["at"], now):
            return True
        raise
    return False


def _owner_below(home: Store, claimed: AlreadyClaimed) -> State | None:
    """Return the state of the history that owns a savepoint, if it belongs below the root of ``home``; None for any other owner."""
    root, begin, path = claimed.about["owner"].rpartition(f"/{JOBS}/")
    with contextlib.suppress(InvalidName):
        prefix = check_prefix(f"{begin}{path}".removeprefix("/"))
        if same_root(root, home.uri):
            return open_history(home, prefix).journal.catch_up()
    return None


def _refuse_owner_of_another_host(home: Store, claimed: AlreadyClaimed) -> None:
    """Raise ``AlreadyClaimed`` if the history that owns a savepoint is absent from a folder: another host may have it, at the same path."""
    if home.uri.startswith("file:"):
        about = claimed.about
        raise AlreadyClaimed(
            f"{about['owner']} owns this savepoint since {about['at']}, by {about['by']}, and is not on this host: another host may have a"
            " folder of that name, or it is not mounted here. Dispose of the savepoint there. If nobody needs it any more, delete its"
            " directory yourself",
            **about,
        )


def _is_abandoned(home: Store, owner: State, pointer: SavepointPointer, claimed_at: str, now: str) -> bool:
    """Return whether no restore has followed a claim for a day. Until then somebody may repeat it."""
    listed = any(_may_be_at(home, SavepointPointer.parse(claim.pointer), pointer) for claim in owner.claims)
    return not listed and datetime.fromisoformat(now) - datetime.fromisoformat(claimed_at) > ABANDONED


@dataclass(frozen=True)
class SavepointGone:
    """A savepoint that its history lists, and that is not at its target any more: it was moved or removed."""

    pointer: SavepointPointer
    coordinator: Coordinator
    id: int

    @property
    def job(self) -> str:
        return self.coordinator.state.job

    @property
    def message(self) -> str:
        return (
            f"{self.pointer}: savepoint chk-{self.id} of {self.job} is gone: its directory was moved or removed, or is not mounted here. If"
            " it was removed on purpose, let the history forget it:"
            f" {wording.command('dispose', '--forget', str(self.pointer), state=self.coordinator.state)}"
        )

    def forget(self, by: str, now: str, *, dry_run: bool = False) -> None:
        """Let the history forget the savepoint. Raises ``Held`` while its job may still start from it."""
        _refuse_held(self.coordinator, self.id, now)
        if not dry_run:
            _condemn(self.coordinator, self.id, by, now)
            _forget(self.coordinator, self.id)


def find_gone(home: Store, pointer: SavepointPointer) -> SavepointGone | None:
    """Return the savepoint that a history in ``home`` lists at ``pointer``, if nothing is there any more.

    The name of the directory names the job. A savepoint that is not published yet is not gone.
    """
    listed = _listed_at(home, pointer)
    return SavepointGone(pointer, *listed) if listed is not None and is_gone(home, pointer) else None


def is_gone(home: Store, pointer: SavepointPointer) -> bool:
    """Return whether no savepoint is at ``pointer``, not even a disposed one."""
    return not exists(home.beside(pointer.root, limited=False), pointer.metadata)


def open_listed(pointer: SavepointPointer, home: Store, *, limited: bool = True) -> Savepoint:
    """Open a savepoint. If nothing is there, but a history in ``home`` lists it, the ``CheckpointNotFound`` says so."""
    try:
        return savepoint_target.open_savepoint(pointer, home, limited=limited)
    except CheckpointNotFound as absent:
        raise _absence(home, pointer, absent) from None


def _absence(home: Store, pointer: SavepointPointer, absent: CheckpointNotFound) -> CheckpointNotFound:
    """Return ``absent``, or what says that a savepoint is gone."""
    with contextlib.suppress(CheckpointError):  # of another history, which must not hide that nothing is there
        if gone := find_gone(home, pointer):
            return CheckpointNotFound(gone.message)
    return absent


def _check_reach(home: Store, pointer: SavepointPointer) -> None:
    """Raise ``StoreMisconfigured`` for a place outside of the savepoint roots, unless a history lists a savepoint there."""
    try:
        home.beside(pointer.root)
    except StoreMisconfigured:
        if _listed_at(home, pointer) is None:
            raise


def _listed_at(home: Store, pointer: SavepointPointer) -> tuple[Coordinator, int] | None:
    """Return the history in ``home`` that lists a published savepoint at ``pointer``, and its id. Nothing is read there."""
    for job in jobs(home):
        if not pointer.name.startswith(f"savepoint-{job}-"):
            continue
        for prefix in all_prefixes(home, job):
            coordinator = open_history(home, prefix)
            for savepoint in coordinator.journal.catch_up().checkpoints:
                listed = savepoint.target and savepoint.published and savepoint.status in (RETAINED, CONDEMNED)
                if listed and is_at(home, target_of(savepoint), pointer):
                    return coordinator, savepoint.id
    return None


def _finish(home: Store, pointer: SavepointPointer, by: str, now: str, *, dry_run: bool) -> Disposed:
    """Finish an interrupted disposal: its stub exists, so nobody can open the savepoint any more."""
    target = home.beside(pointer.root, limited=False)
    savepoint_target.refuse_history(target, pointer)
    savepoint_target.refuse_stub_alone(target, pointer)
    if not dry_run:
        savepoint_target.delete_savepoint(target, pointer, DISPOSAL, by, now)
    return Disposed(pointer, "", 0, 0, own=False)


def _own_history(home: Store, seal: Seal, pointer: SavepointPointer) -> tuple[Coordinator, int] | None:
    """Return the history that made the savepoint and its id there, if the history lies in ``home`` and lists this directory."""
    coordinator = open_history(home, History(seal.job, seal.scope or None, seal.item).prefix)
    state = coordinator.journal.catch_up()
    checkpoint = state.checkpoint(seal.id) if state.incarnation == seal.inc else None
    if checkpoint is None or checkpoint.status not in (RETAINED, CONDEMNED) or not checkpoint.target:
        return None
    return (coordinator, checkpoint.id) if _may_be_at(home, target_of(checkpoint), pointer) else None


def _condemn(coordinator: Coordinator, number: int, by: str, now: str) -> None:
    """Note in the history of a savepoint that ``by`` deletes or claims it."""
    coordinator.journal.by = By("savepoint", by, "")
    coordinator.journal.append(c.Condemn(ids=(number,), now=now, disposing=True))


def _forget(coordinator: Coordinator, number: int) -> None:
    """Delete the seal and the acknowledgements of a condemned savepoint in its history, and let the history forget it."""
    coordinator.store.delete_under(coordinator.keys.checkpoint(number))
    coordinator.journal.append(c.Forget(ids=(number,)))


def is_at(home: Store, listed: SavepointPointer, pointer: SavepointPointer) -> bool:
    """Return whether a savepoint that a history lists is the one at ``pointer``, whose root may be spelled in another way."""
    return listed.name == pointer.name and same_root(_root_of(home, listed), _root_of(home, pointer))


def _may_be_at(home: Store, listed: SavepointPointer, pointer: SavepointPointer) -> bool:
    """Return whether a listed savepoint is the one at ``pointer``, as far as this host can tell.

    It may be listed in a folder that is not here: a mount has another name on this host, or the whole root was moved.
    """
    unseen = listed.name == pointer.name and is_out_of_sight(_root_of(home, listed))
    return unseen or is_at(home, listed, pointer)


def _root_of(home: Store, pointer: SavepointPointer) -> str:
    try:
        return home.beside(pointer.root, limited=False).uri
    except StoreMisconfigured:  # no savepoint of ``home`` may lie there any more
        return pointer.root


def _refuse_held(coordinator: Coordinator, number: int, now: str) -> None:
    state = coordinator.state
    if number in held(state, datetime.fromisoformat(now)):
        raise Held(
            f"{state.job} may still start from savepoint chk-{number}; nothing was changed. Wait for its next checkpoint, or"
            f" choose another restore point: {wording.restore(state, '…')}",
            ids=[number],
        )
