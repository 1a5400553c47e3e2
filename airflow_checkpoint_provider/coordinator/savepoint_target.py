"""The target of a savepoint: its seal, the lock of its deletion, and the stub after a disposal. Runs anywhere.

A savepoint lies in a directory of its own: its file sets; then ``_metadata``, a copy of the seal, which completes it; and
``_claimed``, which names the owner of its deletion. Nothing here reads a journal. Every step can be repeated, by any process.

A disposal first overwrites ``_metadata`` by a *stub*, and never deletes the stub. If it is killed, the directory holds a whole
savepoint, or a stub that nobody can open, and the next disposal continues. A publisher that was suspended finds the stub and
cannot publish the savepoint again. ``_claimed`` stays too: a later claim is refused, so a savepoint that is whole after its
claim stays whole.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.coordinator.files import verify
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.fields import Time
from airflow_checkpoint_provider.protocol.keys import HISTORY, JOBS, SAVEPOINTS, STATE, Keys, SavepointPointer
from airflow_checkpoint_provider.protocol.metadata import Seal, digest
from airflow_checkpoint_provider.protocol.records import VERSION, Record, added, checked, parse
from airflow_checkpoint_provider.storage.base import Store, exists, put, resolved

NO_CLAIM, CLAIM = "no_claim", "claim"
DISPOSAL = "disposal"
"""The owner of a savepoint that is being disposed of: any process may continue an interrupted disposal."""


@dataclass(frozen=True, kw_only=True)
class ClaimLock(Record):
    """The content of ``_claimed``. ``owner`` is who may delete the savepoint: the URI of a history's folder, or ``DISPOSAL``. Two hosts may
    have a folder of one URI each, so ``incarnation`` is that of the history. The other fields are for people.
    """

    owner: str
    by: str
    at: Time
    incarnation: str = added("")
    v: int = VERSION


@dataclass(frozen=True, kw_only=True)
class DisposedStub(Record):
    """The content of ``_metadata`` after a disposal."""

    by: str
    at: Time
    stub: bool = True
    v: int = VERSION


@dataclass(frozen=True)
class Savepoint:
    """An opened savepoint. ``digest`` and ``metadata_bytes`` are those of its ``_metadata`` as it was read."""

    pointer: SavepointPointer
    store: Store
    seal: Seal
    digest: str
    metadata_bytes: int

    @property
    def keys(self) -> Keys:
        """Return the keys of the file sets of its seal."""
        return self.pointer.keys

    @property
    def bytes(self) -> int:
        return sum(state.bytes for state in self.seal.states.values())

    def verify(self, *, deep: bool = False) -> int:
        """Return the number of its files. Raises ``Damaged`` if one is missing, or has another size or footer.

        ``deep``: or another page.
        """
        try:
            return verify(self.store, self.keys, self.seal.states.values(), deep=deep)
        except errors.Damaged as error:
            raise errors.Damaged(
                f"{self.pointer} is not whole: {error.message}. Copy the directory again, or name another savepoint"
            ) from None


# -- where a savepoint may lie -------------------------------------------------------------------------------------------

_HISTORY = re.compile(rf"/{HISTORY}(?:/|\Z)")
_PARTS_OF_URI = re.compile(r"(?P<top>[a-z0-9]+://(?:/[^/]+|[^/]+))/(?P<below>.+)")  # the first directory, or the bucket


def check_target(home: Store, folder: str) -> str:
    """Return the URI of ``folder``, in which a savepoint may get its own directory. ``home`` is the store of its history.

    Raises ``InvalidConfig`` if ``folder`` lies inside of a history, a checkpoint's folder or another savepoint: a deletion of that would
    delete the new savepoint, too.
    """
    uri = home.beside(folder).uri
    if _HISTORY.search(uri) or f"{uri}/".startswith(f"{home.uri}/{JOBS}/"):
        raise errors.InvalidConfig(
            f"{uri} lies inside of the histories of jobs, where a savepoint would be deleted with one of them. Choose another"
            f" target, for example {home.uri}/{SAVEPOINTS}"
        )
    inside = _savepoint_above(home, uri)
    if inside is not None:
        raise errors.InvalidConfig(
            f"{uri} lies inside of the savepoint {inside}, and would be deleted with it. Choose a target beside it"
        )
    return uri


def _savepoint_above(home: Store, uri: str) -> str | None:
    """Return the savepoint, or the rest of one, in which ``uri`` lies.

    A directory that may not be read is passed over. The search ends where no savepoint of ``home`` may lie.
    """
    match = _PARTS_OF_URI.fullmatch(uri)
    if not match:
        return None
    names = match["below"].split("/")
    for count in range(len(names), 0, -1):
        above = "/".join((match["top"], *names[:count]))
        if above == home.uri:
            return None
        try:
            if exists(home.beside(above), "_metadata"):  # a store of its own: its path may lead through links
                return above
        except errors.StoreDenied:
            continue
        except errors.StoreMisconfigured:
            return None
    return None


# -- opening -------------------------------------------------------------------------------------------------------------


def open_savepoint(pointer: SavepointPointer, home: Store, *, limited: bool = True) -> Savepoint:
    """Return the savepoint at ``pointer``. The credentials of ``home`` are used for its store, and its limits, if ``limited``.

    Raises ``CheckpointNotFound`` if nothing was published there, ``SavepointDisposed``, ``Damaged``, ``FormatTooNew``.
    """
    store = home.beside(pointer.root, limited=limited)
    body = store.read(pointer.metadata)
    if body is None:
        raise errors.CheckpointNotFound(
            f"{pointer}: there is no savepoint: it holds no _metadata. One that was not completed never gets it;"
            " for one that was moved, name the directory that holds _metadata"
        )
    stub = _stub(body, pointer)
    if stub:
        raise errors.SavepointDisposed(
            f"{pointer} was disposed of at {stub.at} by {stub.by}; name another savepoint", at=stub.at, by=stub.by
        )
    return Savepoint(pointer, store, Seal.from_bytes(body, f"{pointer}/_metadata"), digest(body), len(body))


def _stub(body: bytes, pointer: SavepointPointer) -> DisposedStub | None:
    key = f"{pointer}/_metadata"
    return DisposedStub.from_bytes(body, key) if parse(body, key).get("stub") else None


# -- publishing ----------------------------------------------------------------------------------------------------------


def put_metadata(history: Store, seal_key: str, sealed: str, target: Store, pointer: SavepointPointer) -> None:
    """Put a completed savepoint's seal into its directory, where its files already are. Any process may repeat it. If the savepoint was
    published before and disposed of since, nothing is written. ``sealed`` is the digest in its *completed* entry, which the caller has
    read. Raises ``Damaged`` if the seal is missing or differs, ``OtherSavepoint``, and ``CommitStateUnknown`` if the store did not answer.
    """
    body = history.read(seal_key)
    if body is None:
        # The seal was deleted: the savepoint has been published, or never will be
        published = target.read(pointer.metadata)
        if published is None:
            raise errors.Damaged(f"{seal_key} is missing, so {pointer} cannot be published; take another savepoint")
        _check_published(published, sealed, pointer)
        return
    if digest(body) != sealed:
        raise errors.Damaged(
            f"{seal_key} is not what the journal says was sealed, so {pointer} is not published; take another"
        )
    _, stored = put(target, pointer.metadata, body)
    if stored is None:
        raise errors.CommitStateUnknown.of(f"{pointer.metadata} was written")
    _check_published(stored, sealed, pointer)


def _check_published(stored: bytes, sealed: str, pointer: SavepointPointer) -> None:
    if digest(stored) != sealed and not _stub(stored, pointer):
        raise errors.OtherSavepoint(
            f"{pointer} holds the _metadata of another savepoint; nothing was changed. Choose another target"
        )


# -- claiming and disposing ----------------------------------------------------------------------------------------------


def claim_mode(text: str) -> str:
    """Return ``text`` if it is ``no_claim`` or ``claim``. Raises ``InvalidConfig`` for any other text."""
    if text == "legacy":
        raise errors.InvalidConfig(
            "claim_mode='legacy': nobody would know when the savepoint may be deleted. Write \"no_claim\" (it stays yours and is"
            ' copied by the first checkpoint) or "claim" (the job owns and deletes it)'
        )
    if text not in (NO_CLAIM, CLAIM):
        raise errors.InvalidConfig(f'claim_mode={text!r}: write "{NO_CLAIM}" (the savepoint stays yours) or "{CLAIM}"')
    return text


def check_claim(store: Store, pointer: SavepointPointer, owner: str, incarnation: str = "") -> None:
    """Raise ``AlreadyClaimed`` if ``put_claim`` would. Nothing is written."""
    body = store.read(pointer.claim)
    if body is not None:
        _refuse_other(body, pointer, owner, incarnation)


def put_claim(store: Store, pointer: SavepointPointer, owner: str, by: str, at: str, incarnation: str = "") -> None:
    """Claim the deletion of a savepoint. A second claim of the same owner changes nothing. Raises ``AlreadyClaimed``.

    ``owner`` is the folder of a history of this ``incarnation``, or ``DISPOSAL``. Open the savepoint before, since an empty directory
    could be claimed too; verify it afterwards.
    """
    body = checked(ClaimLock(owner=owner, by=by, at=at, incarnation=incarnation))
    _, stored = put(store, pointer.claim, body)
    if stored is None:
        raise errors.CommitStateUnknown.of(f"{pointer.claim} was written")
    _refuse_other(stored, pointer, owner, incarnation)


def take_over_claim(store: Store, pointer: SavepointPointer, by: str, at: str) -> None:
    """Dispose of a savepoint whose owner does not exist any more. ``_claimed`` is never absent meanwhile."""
    store.overwrite(pointer.claim, checked(ClaimLock(owner=DISPOSAL, by=by, at=at)))


def _refuse_other(claimed: bytes, pointer: SavepointPointer, owner: str, incarnation: str = "") -> None:
    lock = ClaimLock.from_bytes(claimed, f"{pointer}/_claimed")
    if resolved(lock.owner) == resolved(owner) and lock.incarnation in ("", incarnation or lock.incarnation):
        return
    whose = "to be disposed of" if lock.owner == DISPOSAL else "for another history"
    advice = f'Take another savepoint; without a claim (claim_mode="{NO_CLAIM}") several jobs may start from one'
    if owner == DISPOSAL:
        advice = (
            "That deletes it when its retention keeps it no more; if its restore was given up, dispose of it a day later. If"
            f" {lock.owner} does not exist any more, write --root with its root before the verb"
        )
    raise errors.AlreadyClaimed(
        f"{pointer} was claimed {whose} at {lock.at} by {lock.by}. {advice}",
        owner=lock.owner, by=lock.by, at=lock.at, incarnation=lock.incarnation,
    )  # fmt: skip


def delete_savepoint(
    store: Store, pointer: SavepointPointer, owner: str, by: str, at: str, incarnation: str = ""
) -> None:
    """Claim a savepoint and delete its file sets. Raises ``AlreadyClaimed``, and ``InvalidName`` for a history.

    A second call of the same owner finishes an interrupted deletion; the stub keeps the text of the first. A savepoint that was
    never published gets a stub too.
    """
    refuse_history(store, pointer)
    put_claim(store, pointer, owner, by, at, incarnation)
    if not _is_stub(store, pointer):
        store.overwrite(pointer.metadata, checked(DisposedStub(by=by, at=at)))
    delete_files(store, pointer)


def finish_disposal(store: Store, pointer: SavepointPointer, by: str, at: str) -> None:
    """Delete a savepoint that somebody disposes of. Raises ``AlreadyClaimed``. Without a claim nothing is deleted: a journal proves
    nothing.

    A claim that cannot be read and a directory that is a history prove nothing either.
    """
    if exists(store, pointer.claim):
        with contextlib.suppress(errors.Damaged, errors.InvalidName):
            delete_savepoint(store, pointer, DISPOSAL, by, at)


def delete_own(store: Store, pointer: SavepointPointer, owner: str, by: str, at: str, incarnation: str = "") -> None:
    """Delete a savepoint that the history ``owner`` of this ``incarnation`` has claimed.

    Raises ``NotItsClaim``, and deletes nothing, if the claim beside it does not name that history: a journal alone names no owner. A
    deletion leaves the claim, so an absent one is not that of a savepoint that was deleted before.
    """
    dispose = wording.command("dispose", str(pointer))
    claimed = store.read(pointer.claim)
    if claimed is None and not exists(store, pointer.metadata):
        raise errors.NotItsClaim(
            f"nothing is at {pointer}, which {owner} owns: it was moved or deleted by hand, or its folder is not mounted here. The history"
            f" forgets it. If it is there after all, and nobody needs it: {dispose}"
        )
    try:
        if claimed is None:
            raise errors.Damaged("it holds no _claimed")
        _refuse_other(claimed, pointer, owner, incarnation)
        delete_savepoint(store, pointer, owner, by, at, incarnation)
    except (errors.AlreadyClaimed, errors.Damaged, errors.InvalidName) as error:
        if error.about.get("owner") != DISPOSAL:
            raise errors.NotItsClaim(
                f"savepoint {pointer} stays: {owner} says that it owns it, but the claim beside the savepoint does not say so"
                f" ({error.message}). The history forgets it. If nobody needs it: {dispose}"
            ) from None


def delete_files(store: Store, pointer: SavepointPointer) -> None:
    """Delete the file sets of a savepoint, and nothing else that lies in its directory."""
    store.delete_under(f"{pointer.name}/{STATE}")


def refuse_history(store: Store, pointer: SavepointPointer) -> None:
    """Raise ``InvalidName`` if the directory is a history, or lies inside of one: its file sets are those of a job."""
    if _HISTORY.search(str(pointer)) or next(iter(store.list(f"{pointer.name}/journal")), None) is not None:
        raise errors.InvalidName(
            f"{pointer} is a history of a job, or lies inside of one, and no savepoint: nothing was changed"
        )


def refuse_stub_alone(store: Store, pointer: SavepointPointer) -> None:
    """Raise ``Damaged`` for a stub without a claim, and ``AlreadyClaimed`` if the claim is not that of a disposal.

    Each deletion claims a savepoint first. So a stub alone was put there by somebody else, and proves nothing about the files.
    """
    claimed = store.read(pointer.claim)
    if claimed is None:
        raise errors.Damaged(
            f"{pointer} holds the stub of a disposed savepoint, but no _claimed, which each disposal writes first. So its files may belong"
            f" to something else, and nothing was deleted. If {STATE}/ in there is nobody's, delete it yourself"
        )
    _refuse_other(claimed, pointer, DISPOSAL)


def _is_stub(store: Store, pointer: SavepointPointer) -> bool:
    """Return whether there is a stub. A damaged savepoint may be disposed of; one of a newer format may not,
    because it may have files that this version does not know.
    """
    try:
        body = store.read(pointer.metadata)
        return body is not None and _stub(body, pointer) is not None
    except errors.Damaged:
        return False
