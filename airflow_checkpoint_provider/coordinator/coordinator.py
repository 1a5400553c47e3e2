"""The thin shell round the state machine: the steps that take more than one store operation. Runs anywhere.

Any process that sees a step due may do it, also more than once; only the journal says what happened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.coordinator.entry import READER, By
from airflow_checkpoint_provider.coordinator.journal import Answer, Journal
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import requests, wording
from airflow_checkpoint_provider.protocol.checkpoint_records import (
    ABORTED,
    CONDEMNED,
    FORGOTTEN,
    PENDING,
    RETAINED,
    Checkpoint,
)
from airflow_checkpoint_provider.protocol.completion import outcome
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import Keys, Pointer
from airflow_checkpoint_provider.protocol.kinds import ACKNOWLEDGE, COMPLETE, SEAL, TOO_LARGE, kind_named
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal, StateEntry, digest
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Put, Store, put


class Coordinator:
    """A coordinator of the checkpoints of one history. ``epoch`` is the driver's own; None for tasks and people."""

    def __init__(self, journal: Journal, epoch: int | None = None) -> None:
        self.journal, self.epoch = journal, epoch
        self.store, self.keys = journal.store, journal.keys
        # Acknowledgements put by this process, so not read again
        self._own: dict[tuple[int, str], Acknowledgement] = {}

    @property
    def state(self) -> State:
        return self.journal.state

    def check_not_fenced(self) -> None:
        """Catch up, and raise ``Fenced`` if this attempt is over. Call it before any effect outside the journal."""
        state = self.journal.catch_up()
        if self.epoch is not None and state.over(self.epoch):
            raise errors.Fenced(f"attempt {self.epoch} of {state.job} is over", epoch=self.epoch)

    # -- one checkpoint --------------------------------------------------------------------------------------------

    def trigger(self, request: Request, *, run: str | None = None, pause_left_s: float = 0.0) -> int:
        """Ask for a checkpoint; return the id of the checkpoint that answers ``request``.

        A known request is answered with its newest checkpoint. A savepoint needs ``request.folder``, the URI of a folder.
        ``run``: only an attempt of this run may take it. Raises ``Queued`` while the request waits for its turn; asking again
        then costs a read. Raises ``MinPause`` for the timer's request if ``pause_left_s`` seconds of the pause remain.
        """
        if requests.turn_in_queue(self.state, request.token):
            self.journal.poll()
            self._refuse_waiting(request.token)
        if request.name and not request.name.isprintable():
            raise errors.InvalidConfig(
                f"name={request.name!r} breaks the rows of lists; write it in one line, without tabs and other characters that cannot be printed"
            )
        if kind_named(request.kind).savepoint:
            if request.gated:
                raise errors.InvalidConfig(
                    f"kind={request.kind!r} cannot be gated: a savepoint is not deleted when its gate refuses it. Gate a checkpoint instead"
                )
            request = self._with_folder(request)
        self.journal.append(c.Trigger(request=request, epoch=self.epoch, run=run, pause_left_s=pause_left_s))
        self._refuse_waiting(request.token)
        return self.state.requests[request.token]

    def _with_folder(self, request: Request) -> Request:
        if not request.folder:
            raise errors.InvalidConfig(
                f"kind={request.kind!r} needs target=, the folder in which the savepoint gets one of its own"
            )
        return replace(request, folder=self.store.beside(request.folder).uri, nonce=self.journal.nonce()[:8])

    def _refuse_waiting(self, token: str) -> None:
        if found := requests.turn_in_queue(self.state, token):
            place, length = found
            raise errors.Queued(
                f"{self.state.job}: the request waits, {place} of {length}; ask again when a checkpoint has its outcome"
            )

    def acknowledge(self, ack: Acknowledgement) -> Acknowledgement:
        """Put the acknowledgement of one application. Return the one that counts: the first one put, perhaps by another writer."""
        checkpoint = self._listed(ack.id)
        if ack.application not in checkpoint.plan:  # nobody would read it
            raise errors.NotPending(
                f"chk-{ack.id} does not wait for application {ack.application!r}; nothing was written",
                status=checkpoint.status,
            )
        epochs = checkpoint.epochs
        if ack.epoch not in epochs:  # it would count as the acknowledgement of the other attempt
            raise errors.Fenced(
                f"chk-{ack.id} waits for attempt {epochs[-1]}, not for attempt {ack.epoch}", epoch=ack.epoch
            )
        key, body = self.keys.acknowledgement(ack.id, ack.application), ack.to_bytes()
        Acknowledgement.from_bytes(ack.unproved().to_bytes(), key)  # an unreadable one blocks the checkpoint
        with self._aborted_if_too_large(ack.id, ACKNOWLEDGE):
            outcome, stored = put(self.store, key, body, patience=self.journal.patience)
        if outcome is Put.UNKNOWN:
            raise errors.CommitStateUnknown(
                f"the store did not say whether chk-{ack.id} was acknowledged; it will expire or be replaced"
            )
        counting = (
            self._read_acknowledgement(stored, checkpoint, ack.application) if outcome is Put.EXISTS and stored else ack
        )
        self._forget_over()
        self._own[ack.id, ack.application] = counting
        return counting

    def missing(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        """Return the applications that have not acknowledged the checkpoint yet. Cost: one GET for each."""
        acks = self._acknowledgements(checkpoint)
        return tuple(application for application in checkpoint.plan if application not in acks)

    def complete(self, number: int, *, finalize: bool = False) -> Answer:
        """Put the seal made of all acknowledgements, read it back, and write *completed* with its digest.

        ``finalize``: the caller may complete a gated checkpoint.
        """
        checkpoint = self._listed(number)
        needs_finalize = checkpoint.request.gated and not finalize
        acks = self._acknowledgements(checkpoint) if checkpoint.status == PENDING and not needs_finalize else {}
        if len(acks) < len(checkpoint.plan):
            return self._unsealed(number, finalize)
        with self._aborted_if_too_large(number, SEAL):
            seal = self._seal(checkpoint, acks)
            body = self._put_seal(number, sent := seal.to_bytes())
        if body != sent:
            seal = Seal.from_bytes(body, self.keys.seal(number))
        if _nonces(seal.applications) != _nonces(acks):
            raise errors.Damaged(
                f"{self.keys.seal(number)} is not made of the acknowledgements of chk-{number}; abort it"
            )
        answer = self._complete(number, seal, body, finalize)
        self._forget_over()
        return answer

    def _forget_over(self) -> None:
        """Forget the acknowledgements of checkpoints that have their outcome."""
        pending = {checkpoint.id for checkpoint in self.state.pending}
        self._own = {key: ack for key, ack in self._own.items() if key[0] in pending}

    def _complete(self, number: int, seal: Seal, body: bytes, finalize: bool) -> Answer:
        """Write the entry."""
        states = state_entries(seal)
        command = c.Complete(
            id=number,
            digest=digest(body),
            metadata_bytes=len(body),
            bytes=sum(entry.bytes for entry in states),
            states=states,
            acknowledged=tuple(seal.applications),
            barrier=seal.barrier,
            epoch=self.epoch,
            finalize=finalize,
        )
        with self._aborted_if_too_large(number, COMPLETE):
            return self.journal.append(command)

    @contextlib.contextmanager
    def _aborted_if_too_large(self, number: int, phase: str) -> Iterator[None]:
        """Abort a checkpoint that is too large to be stored: a pending one would block all others."""
        try:
            yield
        except errors.TooLarge as error:
            self.abort(number, TOO_LARGE, phase=phase, details=error.message)
            raise

    def _unsealed(self, number: int, finalize: bool) -> Answer:
        """Return the answer for a checkpoint that has its outcome, lacks an acknowledgement, or is gated.

        It is not sealed. A seal is written once, so a seal with missing acknowledgements could not be corrected.
        """

        def completion(state: State) -> c.Complete:
            checkpoint = state.checkpoint(number)
            return c.Complete(
                id=number,
                digest=checkpoint.digest if checkpoint else "",
                bytes=0,
                metadata_bytes=0,
                states=(),
                acknowledged=(),
                epoch=self.epoch,
                finalize=finalize,
            )

        self.journal.catch_up()
        return self.journal.append(completion)

    def end_attempt(self, command: c.EndAttempt) -> Answer:
        """Record the end of an attempt. Its checkpoints that lack only their completion are completed first.

        The entry of the end aborts the checkpoints that are still pending then. Raises ``Fenced``.
        """
        self._complete_acknowledged(command.epoch)
        return self.journal.append(command)

    def _complete_acknowledged(self, epoch: int) -> None:
        pending = [checkpoint for checkpoint in self.state.pending if epoch in checkpoint.epochs]
        for checkpoint in pending:
            if not checkpoint.request.gated:  # only a finalize completes a gated one
                with contextlib.suppress(errors.CheckpointError):
                    if not self.missing(checkpoint):
                        self.complete(checkpoint.id)

    def abort(
        self, number: int, reason: str, *, phase: str = ACKNOWLEDGE, missing: Iterable[str] = (), details: str = ""
    ) -> Answer:
        """Abort a pending checkpoint. An aborted one is *done already*. Raises ``NotPending`` if it is not pending, and ``Fenced`` if
        this attempt is over.
        """
        command = c.Abort(
            id=number, reason=reason, phase=phase, missing=tuple(missing), details=details, epoch=self.epoch
        )
        return self.journal.append(command)

    def confirm_commits(self, number: int) -> Answer:
        """Record that every participant was told that the checkpoint is completed. Raises ``NotPending`` if it is not."""
        return self.journal.append(c.ConfirmCommits(id=number, epoch=self.epoch))

    def _listed(self, number: int) -> Checkpoint:
        checkpoint = self.state.checkpoint(number) or self.journal.catch_up().checkpoint(number)
        if checkpoint is None:
            see = wording.command("show", self.state.job or "JOB", *wording.item_option(self.state), state=self.state)
            raise errors.CheckpointNotFound(f"chk-{number} is not listed in {self.keys.prefix}; see `{see}`")
        return checkpoint

    def _acknowledgements(self, checkpoint: Checkpoint) -> dict[str, Acknowledgement]:
        acks = {}
        for application in checkpoint.plan:
            ack = self._own.get((checkpoint.id, application))
            if ack is None:
                body = self.store.read(self.keys.acknowledgement(checkpoint.id, application))
                ack = self._read_acknowledgement(body, checkpoint, application) if body is not None else None
            if ack is not None:
                acks[application] = ack
        return acks

    def _read_acknowledgement(self, body: bytes, checkpoint: Checkpoint, application: str) -> Acknowledgement:
        """Return the acknowledgement in ``body``. Raises ``OtherIncarnation`` and ``Damaged`` if the journal, or a part of it, was deleted by
        hand: ids start again then, but old checkpoints may still exist.
        """
        number = checkpoint.id
        ack = Acknowledgement.from_bytes(body, self.keys.acknowledgement(number, application))
        if ack.inc != self.state.incarnation:
            raise errors.OtherIncarnation(
                f"chk-{number} was acknowledged by another incarnation of this history, whose journal was deleted by hand:"
                f" delete {self.keys.checkpoint(number)} and its neighbours, too"
            )
        if ack.epoch not in checkpoint.epochs:
            raise errors.Damaged(
                f"chk-{number} waits for attempt {checkpoint.epochs[-1]}, and attempt {ack.epoch} has acknowledged it, in a part of the"
                f" journal that was deleted by hand: delete {self.keys.checkpoint(number)} and those after it, too"
            )
        return ack

    def _seal(self, checkpoint: Checkpoint, acks: dict[str, Acknowledgement]) -> Seal:
        state = self.state
        return Seal(
            inc=state.incarnation,
            job=state.job,
            scope=state.scope,
            item=state.item,
            id=checkpoint.id,
            kind=checkpoint.kind,
            branch=checkpoint.branch,
            epochs=checkpoint.epochs,
            plan=checkpoint.plan,
            applications=acks,
        )

    def _put_seal(self, number: int, body: bytes) -> bytes:
        """Put the seal and return its bytes as they were read back from the store."""
        key = self.keys.seal(number)
        outcome, _ = put(self.store, key, body, patience=self.journal.patience)
        stored = self.store.read(key)
        if outcome is Put.UNKNOWN or stored is None:
            raise errors.CommitStateUnknown.of(f"the seal of chk-{number} was written")
        return stored

    def pointer(self, number: int) -> Pointer:
        """Return the pointer of a checkpoint in this history, wherever the files of a savepoint are."""
        return self.keys.pointer(self.store.uri, number)

    @property
    def folder(self) -> str:
        """Return the URI of the history's folder. It names the history as the owner of the savepoints that it claims."""
        return self.keys.folder(self.store.uri)

    def contents(self, checkpoint: Checkpoint) -> tuple[Seal, bool]:
        """Return the content of a checkpoint, and whether it is sealed. A pending checkpoint can be read once all
        have acknowledged.

        Raises ``NotPending`` if it lacks an acknowledgement or was aborted, ``CheckpointNotFound`` if it was deleted.
        """
        if checkpoint.status == RETAINED:
            return self.read_seal(checkpoint), True
        if checkpoint.status in (CONDEMNED, FORGOTTEN):
            raise errors.CheckpointNotFound(
                f"chk-{checkpoint.id} was deleted; retention=KeepWithin(days=7) keeps it next time"
            )
        acks = self._acknowledgements(checkpoint) if checkpoint.status == PENDING else {}
        if len(acks) < len(checkpoint.plan):
            cause = outcome(checkpoint) if checkpoint.status == ABORTED else "not acknowledged yet; wait for that"
            raise errors.NotPending(f"chk-{checkpoint.id} cannot be looked at: {cause}", status=checkpoint.status)
        return self._seal(checkpoint, acks), False

    def read_seal(self, checkpoint: Checkpoint) -> Seal:
        """Return the seal of a completed checkpoint. Raises ``Damaged`` if its digest is not that of its entry."""
        key = self.keys.seal(checkpoint.id)
        body = self.store.read(key)
        if body is None:
            raise errors.Damaged(f"{key} is missing, though the journal says that chk-{checkpoint.id} was completed")
        if digest(body) != checkpoint.digest:
            raise errors.Damaged(f"{key} is not what the journal says was sealed; somebody or something changed it")
        return Seal.from_bytes(body, key)


def _nonces(acks: Mapping[str, Acknowledgement]) -> dict[str, str]:
    return {application: ack.nonce for application, ack in acks.items()}


def state_entries(seal: Seal) -> tuple[StateEntry, ...]:
    """Return the entries of a seal's states for the journal."""
    unused = {uid for ack in seal.applications.values() for uid in ack.unused}
    marked = (
        (state.entry, state.measures.checkpoint == seal.id, uid in unused) for uid, state in sorted(seal.states.items())
    )
    # An entry without a mark is shared by all checkpoints that hand it on
    return tuple(replace(entry, new=new, unused=idle) if new or idle else entry for entry, new, idle in marked)


def open_history(store: Store, prefix: str, by: By = READER) -> Coordinator:
    """Return the coordinator of the history at ``prefix``. ``by`` writes the entries. Nothing is read yet."""
    return Coordinator(Journal(store, Keys(prefix), by))
