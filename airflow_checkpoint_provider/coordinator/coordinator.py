"""The thin shell round the state machine: what takes more than one store operation. Runs anywhere.

Each step may be done by anyone who sees that it is due, more than once; only the journal says what happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_checkpoint_provider.coordinator.journal import Answer, Journal
from airflow_checkpoint_provider.errors import (
    CheckpointNotFound,
    CommitStateUnknown,
    Damaged,
    Fenced,
    InvalidConfig,
    NotPending,
    NotSupportedYet,
    OtherIncarnation,
    Queued,
    TooLarge,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import requests
from airflow_checkpoint_provider.protocol.completion import outcome
from airflow_checkpoint_provider.protocol.events import Request, StateEntry
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.protocol.kinds import TOO_LARGE, kind_named
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal, StateSnapshot, digest
from airflow_checkpoint_provider.protocol.state import (
    ABORTED,
    CONDEMNED,
    FORGOTTEN,
    PENDING,
    RETAINED,
    Checkpoint,
    State,
)
from airflow_checkpoint_provider.storage.base import Put, put

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Coordinator:
    """Drives checkpoints of one history. ``epoch`` is the driver's own; None for tasks and people."""

    def __init__(self, journal: Journal, epoch: int | None = None) -> None:
        self.journal, self.epoch = journal, epoch
        self.store, self.keys = journal.store, journal.keys
        self._own: dict[
            tuple[int, str], Acknowledgement
        ] = {}  # acknowledgements put by this process, so not read again

    @property
    def state(self) -> State:
        return self.journal.state

    def still_mine(self) -> None:
        """Before any effect outside the journal: catch up, and raise ``Fenced`` if this attempt is over."""
        state = self.journal.catch_up()
        if self.epoch is not None and state.over(self.epoch):
            raise Fenced(f"attempt {self.epoch} of {state.job} is over", epoch=self.epoch)

    # -- one checkpoint --------------------------------------------------------------------------------------------

    def trigger(self, request: Request, *, run: str | None = None) -> int:
        """Ask for a checkpoint; return the id of the checkpoint that answers ``request``.

        A known request is answered with its newest checkpoint. A savepoint needs ``request.folder``, the URI of a folder.
        ``run``: only an attempt of this run may take it. Raises ``Queued`` while the request waits for its turn; asking again
        then costs a read.
        """
        if self._waits(request.token):
            self.journal.poll()
            self._refuse_waiting(request.token)
        if request.name and _CONTROL.search(request.name):
            raise InvalidConfig(f"name={request.name!r} breaks the rows of lists; write it in one line, without tabs")
        if kind_named(request.kind).drains:
            raise NotSupportedYet(
                f"kind={request.kind!r}: this version does not end the data first. Ask for a suspend_savepoint instead"
            )
        if kind_named(request.kind).savepoint:
            request = self._with_folder(request)
        self.journal.append(c.Trigger(request=request, epoch=self.epoch, run=run))
        self._refuse_waiting(request.token)
        return self.state.requests[request.token]

    def _with_folder(self, request: Request) -> Request:
        if not request.folder:
            raise InvalidConfig(
                f"kind={request.kind!r} needs target=, the folder in which the savepoint gets one of its own"
            )
        return replace(request, folder=self.store.beside(request.folder).uri, nonce=self.journal.nonce()[:8])

    def _waits(self, token: str) -> bool:
        return any(queued.request.token == token for queued in self.state.queue)

    def _refuse_waiting(self, token: str) -> None:
        waiting = [queued.request.token for queued in requests.in_order(self.state.queue)]
        if token in waiting:
            place = f"{waiting.index(token) + 1} of {len(waiting)}"
            raise Queued(f"{self.state.job}: the request waits, {place}; ask again when a checkpoint has its outcome")

    def acknowledge(self, ack: Acknowledgement) -> Acknowledgement:
        """Put the acknowledgement of one application; returns the one that counts, which is another's if that was first."""
        epochs = self._listed(ack.id).epochs
        if ack.epoch not in epochs:  # put first, it would stand for the attempt whose checkpoint that is
            raise Fenced(f"chk-{ack.id} waits for attempt {epochs[-1]}, not for attempt {ack.epoch}", epoch=ack.epoch)
        key = self.keys.acknowledgement(ack.id, ack.application)
        outcome, found = put(self.store, key, ack.to_bytes(), patience=self.journal.patience)
        if outcome is Put.UNKNOWN:
            raise CommitStateUnknown(
                f"the store did not say whether chk-{ack.id} was acknowledged; it will expire or be replaced"
            )
        stands = self._read_acknowledgement(found, ack.id) if outcome is Put.EXISTS and found else ack
        self._own[ack.id, ack.application] = stands
        return stands

    def missing(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        """The applications that have not acknowledged it yet; one GET for each."""
        acks = self._acknowledgements(checkpoint)
        return tuple(one for one in checkpoint.plan if one not in acks)

    def complete(self, number: int, *, finalize: bool = False) -> Answer:
        """All acknowledgements -> seal put and read back -> *completed*, with the digest of what was read.

        ``finalize`` is said by who may complete a gated one.
        """
        checkpoint = self._listed(number)
        shut = checkpoint.request.gated and not finalize
        acks = self._acknowledgements(checkpoint) if checkpoint.status == PENDING and not shut else {}
        if len(acks) < len(checkpoint.plan):
            return self._unsealed(number, finalize)
        body = self._put_seal(number, self._seal(checkpoint, acks).to_bytes())
        seal = Seal.from_bytes(body)
        if _nonces(seal.applications) != _nonces(acks):
            raise Damaged(f"{self.keys.seal(number)} is not made of the acknowledgements of chk-{number}; abort it")
        answer = self._completed(number, seal, digest(body), finalize)
        self._own = {key: ack for key, ack in self._own.items() if key[0] != number}
        return answer

    def _completed(self, number: int, seal: Seal, sealed: str, finalize: bool) -> Answer:
        """The entry. A completion that does not fit into one is an abort: pending, it would be in the way of all others."""
        states = state_entries(seal)
        command = c.Complete(
            id=number, digest=sealed, bytes=sum(one.bytes for one in states), states=states,
            acknowledged=tuple(seal.applications), epoch=self.epoch, finalize=finalize,
        )  # fmt: skip
        try:
            return self.journal.append(command)
        except TooLarge as error:
            self.abort(number, TOO_LARGE, phase="complete", words=error.message)
            raise

    def _unsealed(self, number: int, finalize: bool) -> Answer:
        """The answer about a checkpoint that has its outcome, lacks an acknowledgement, or is gated. It is not sealed: a
        seal is written once, and one of the acknowledgements there were would stand for the checkpoint when the others came."""

        def completion(state: State) -> c.Complete:
            known = state.checkpoint(number)
            sealed = known.digest if known else ""
            return c.Complete(
                id=number, digest=sealed, bytes=0, states=(), acknowledged=(), epoch=self.epoch, finalize=finalize
            )

        self.journal.catch_up()
        return self.journal.append(completion)

    def abort(
        self, number: int, reason: str, *, phase: str = "acknowledge", missing: Iterable[str] = (), words: str = ""
    ) -> Answer:
        command = c.Abort(id=number, reason=reason, phase=phase, missing=tuple(missing), words=words, epoch=self.epoch)
        return self.journal.append(command)

    def confirm_commits(self, number: int) -> Answer:
        """Record that every participant was told that the checkpoint is completed. Raises ``NotPending`` if it is not."""
        return self.journal.append(c.ConfirmCommits(id=number, epoch=self.epoch))

    def _listed(self, number: int) -> Checkpoint:
        found = self.state.checkpoint(number) or self.journal.catch_up().checkpoint(number)
        if found is None:
            raise CheckpointNotFound(f"chk-{number} is not listed in {self.keys.prefix}; see `checkpoints show`")
        return found

    def _acknowledgements(self, checkpoint: Checkpoint) -> dict[str, Acknowledgement]:
        acks = {}
        for application in checkpoint.plan:
            ack = self._own.get((checkpoint.id, application))
            if ack is None:
                body = self.store.read(self.keys.acknowledgement(checkpoint.id, application))
                ack = self._read_acknowledgement(body, checkpoint.id) if body is not None else None
            if ack is not None:
                acks[application] = ack
        return acks

    def _read_acknowledgement(self, body: bytes, number: int) -> Acknowledgement:
        """Ids begin anew where somebody deleted a journal by hand, and its checkpoints may still be there."""
        ack = Acknowledgement.from_bytes(body)
        if ack.inc != self.state.incarnation:
            raise OtherIncarnation(
                f"chk-{number} was acknowledged by another incarnation of this history, whose journal was deleted by hand:"
                f" delete {self.keys.checkpoint(number)} and its neighbours, too"
            )
        return ack

    def _seal(self, checkpoint: Checkpoint, acks: dict[str, Acknowledgement]) -> Seal:
        state = self.state
        return Seal(
            inc=state.incarnation, job=state.job, scope=state.scope, item=state.item, id=checkpoint.id, kind=checkpoint.kind,
            branch=checkpoint.branch, epochs=checkpoint.epochs, plan=checkpoint.plan, applications=acks,
        )  # fmt: skip

    def _put_seal(self, number: int, body: bytes) -> bytes:
        """The seal as it stands in the store: read back, not remembered."""
        key = self.keys.seal(number)
        outcome, _ = put(self.store, key, body, patience=self.journal.patience)
        found = self.store.read(key)
        if outcome is Put.UNKNOWN or found is None:
            raise CommitStateUnknown(
                f"the store did not say whether the seal of chk-{number} was written; nothing was cleaned up"
            )
        return found

    def pointer(self, number: int) -> Pointer:
        """Return the pointer of a checkpoint in this history, wherever the files of a savepoint are."""
        return self.keys.pointer(self.store.uri, number)

    def contents(self, checkpoint: Checkpoint) -> tuple[Seal, bool]:
        """What it holds, and whether it is sealed. A pending one that all have acknowledged can be looked at before.

        Raises ``NotPending`` if it lacks an acknowledgement or was aborted, ``CheckpointNotFound`` if it was deleted.
        """
        if checkpoint.status == RETAINED:
            return self.read_seal(checkpoint), True
        if checkpoint.status in (CONDEMNED, FORGOTTEN):
            raise CheckpointNotFound(
                f"chk-{checkpoint.id} was deleted; retention=KeepWithin(days=7) keeps it next time"
            )
        acks = self._acknowledgements(checkpoint) if checkpoint.status == PENDING else {}
        if len(acks) < len(checkpoint.plan):
            said = outcome(checkpoint) if checkpoint.status == ABORTED else "not acknowledged yet; wait for that"
            raise NotPending(f"chk-{checkpoint.id} cannot be looked at: {said}", status=checkpoint.status)
        return self._seal(checkpoint, acks), False

    def read_seal(self, checkpoint: Checkpoint) -> Seal:
        """The seal of a completed checkpoint, compared with the digest of its entry."""
        key = self.keys.seal(checkpoint.id)
        body = self.store.read(key)
        if body is None:
            raise Damaged(f"{key} is missing, though the journal says that chk-{checkpoint.id} was completed")
        if digest(body) != checkpoint.digest:
            raise Damaged(f"{key} is not what the journal says was sealed; somebody or something changed it")
        return Seal.from_bytes(body)


def _nonces(acks: Mapping[str, Acknowledgement]) -> dict[str, str]:
    return {application: ack.nonce for application, ack in acks.items()}


def state_entries(seal: Seal) -> tuple[StateEntry, ...]:
    """What the journal remembers of each state."""
    return tuple(_entry(state, seal.id) for state in sorted(seal.states.values(), key=lambda one: one.uid))


def _entry(state: StateSnapshot, number: int) -> StateEntry:
    return StateEntry(
        uid=state.uid, kind=state.kind, run=state.run, file_sets=tuple(file_set.path for file_set in state.file_sets), bytes=state.bytes,
        rows=state.rows, new=state.measures.checkpoint == number, measures=state.measures,
    )  # fmt: skip
