"""A request for a checkpoint or a savepoint, from the first entry to its outcome. Runs anywhere.

Tasks, triggers and the command line wait in the same way. Each builds a ``CheckpointRequest``, and turns the outcomes into its own errors
and lines:

- a task that asks and waits: ``submit()``, then ``wait(deadline, every)``; killed or out of time, ``abort(reason)``;
- a task that is given a checkpoint (sensors, finalize, abort): ``CheckpointRequest.of(...)``, then ``resolve()`` at each poke;
- a trigger, which changes nothing: ``poll()`` in a thread, until an outcome is over or the driver is lost. The task that it
  wakes calls ``resolve(suspected=True)``;
- the command line: ``submit()`` and ``wait(deadline, every, on_outcome=print it)``.

``Liveness`` says whether the driver lives. A store that does not answer ends no wait: the outcome is then ``Unreadable``, with the first
error since the last successful poll.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.coordinator import outcomes
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.liveness import Beat, Liveness, beat_keys
from airflow_checkpoint_provider.coordinator.outcomes import Awaited, Outcome
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.protocol import requests, wording
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.protocol.kinds import ACKNOWLEDGE, FINALIZE, LOST
from airflow_checkpoint_provider.protocol.state import State


class CheckpointRequest:
    """A request and its checkpoint. Not for more than one thread at a time.

    ``connect`` is called until it succeeds once, and again after the store denied access: credentials may have changed.
    """

    def __init__(
        self,
        connect: Callable[[], Coordinator],
        specify: Callable[[Coordinator], Request] | None = None,
        token: str = "",
        awaited: Awaited = Awaited.COMPLETED,
        run: str | None = None,
    ) -> None:
        self._connect, self._specify, self._token, self._awaited, self._run = connect, specify, token, awaited, run
        self._coordinator: Coordinator | None = None
        self._liveness: Liveness | None = None
        self._read_beat = -math.inf  # monotonic
        self._beat: Beat | None = None
        self._completed: float | None = None  # monotonic: when a poll first saw it completed
        self._error: errors.CheckpointError | None = None
        self._folder: str | None = None
        self._incarnation = ""
        self.number: int | None = None  # of the checkpoint, once there is one

    @classmethod
    def of(
        cls,
        connect: Callable[[], Coordinator],
        number: int,
        *,
        folder: str | None = None,
        awaited: Awaited = Awaited.COMPLETED,
        incarnation: str = "",
    ) -> CheckpointRequest:
        """Return the request of checkpoint ``number``. ``folder``: the checkpoint must be the savepoint in that folder. ``incarnation``: its
        history must be that one, if it is not empty.
        """
        request = cls(connect, awaited=awaited)
        request.number, request._folder, request._incarnation = number, folder, incarnation
        return request

    @property
    def coordinator(self) -> Coordinator:
        """Return the coordinator of the history. Raises the errors of ``connect``."""
        if self._coordinator is None:
            self._coordinator = self._connect()
        return self._coordinator

    @property
    def state(self) -> State:
        """Return the state of the history at the last poll."""
        return self.coordinator.state

    @property
    def pointer(self) -> Pointer:
        """Return the pointer of the checkpoint in its history, also for a savepoint. Call it once there is a ``number``."""
        assert self.number is not None
        return self.coordinator.pointer(self.number)

    # -- submitting ------------------------------------------------------------------------------------------------------

    def submit(self) -> Outcome:
        """Submit the request. The same token submits nothing twice; it finds the first request.

        Raises the errors of the store: then nothing was written, or the next ``submit`` with this token finds it.
        """
        assert self._specify
        request = self._specify(self.coordinator)
        try:
            self.number = self._trigger_once(request)
        except errors.Queued:
            return self._unserved(self.state)
        except errors.RequestWasDropped as error:
            return outcomes.Dropped(str(error.about["reason"]))
        except errors.Refused as error:
            return outcomes.RequestRefused(error)
        return self._seen(self.state)

    def _trigger_once(self, request: Request) -> int:
        try:
            return self.coordinator.trigger(request, run=self._run)
        except errors.CommitStateUnknown:  # a repeated request finds the entry that was written
            return self.coordinator.trigger(request, run=self._run)

    def _unserved(self, state: State) -> Outcome:
        """Return the outcome of a request that was in the queue."""
        if turn := requests.turn_in_queue(state, self._token):
            return outcomes.InQueue(*turn)
        dropped = next((request for request in reversed(state.dropped_requests) if request.token == self._token), None)
        if dropped:
            return outcomes.Dropped(dropped.reason)
        self.number = state.requests[self._token]
        return self._seen(state)

    def starting(self) -> str | None:
        """Return one line if the job was launched and its driver, which may attach soon, has not yet; else None. Call it after a poll or
        ``submit``. A launch of which nothing is heard does not count.

        Raises ``StoreError``.
        """
        launch = self.state.starting()
        keys = beat_keys(self.coordinator.keys, self.state) if launch else ()
        if launch is None or not self._may_live(keys):
            return None
        return wording.not_attached(self.state, launch)

    # -- looking -----------------------------------------------------------------------------------------------------

    def poll(self) -> Outcome:
        """Poll once; change nothing. Cost: one read; one for each application if acknowledgements are awaited; one for each beat.

        Raises ``CheckpointNotFound``, and errors that a later poll would raise again.
        """
        return self._tolerant(self._poll)

    def resolve(self, *, suspected: bool = False) -> Outcome:
        """Poll once. If the driver is lost, abort the checkpoint, or complete it if it is fully acknowledged. If it is awaited, publish a
        completed savepoint.

        ``suspected``: another process saw no heartbeat; look for it here, for half a minute at most.
        """
        return self._tolerant(lambda: self._resolve(suspected))

    def wait(
        self,
        deadline: float | None,
        every: float,
        *,
        on_outcome: Callable[[Outcome], object] = lambda outcome: None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> Outcome:
        """Resolve every ``every`` seconds, until the outcome is over or the monotonic clock reaches ``deadline``
        (None: no limit). Return the last outcome.

        ``on_outcome`` is called with each outcome before the wait continues.
        """
        while True:
            outcome = self.resolve()
            remaining = math.inf if deadline is None else deadline - time.monotonic()
            if outcome.over or remaining <= 0:
                return outcome
            on_outcome(outcome)
            sleep(min(every, remaining))

    def _tolerant(self, poll: Callable[[], Outcome]) -> Outcome:
        try:
            outcome = poll()
        except errors.CheckpointError as error:
            if error.permanent or not isinstance(error, errors.StoreError | ConnectionError):
                raise
            if isinstance(error, errors.StoreDenied):
                self._coordinator = None
            if self._liveness:
                self._liveness.excuse()
            self._error = self._error or error
            return outcomes.Unreadable(self._error)
        self._error = None
        return outcome

    def find(self) -> Checkpoint:
        """Return the checkpoint as the journal has it now. Raises ``CheckpointNotFound``, errors of connection and store."""
        try:
            self.coordinator.journal.poll()
        except errors.StoreDenied:
            self._coordinator = None
            raise
        return self._listed(self.state)

    def _poll(self) -> Outcome:
        state = self.coordinator.journal.poll()
        return self._unserved(state) if self.number is None else self._seen(state)

    def _listed(self, state: State) -> Checkpoint:
        if state.replaces(self._incarnation):
            raise errors.CheckpointNotFound(f"{self.pointer}: {wording.ANOTHER_HISTORY}", over=True)
        checkpoint = state.checkpoint(self.number)
        if checkpoint is None:
            over = self.number is not None and self.number < state.next_id
            why = "its outcome is so old that the journal has forgotten it" if over else "the journal never heard of it"
            if state.n < 0:
                why = "there is no such history"
            raise errors.CheckpointNotFound(
                f"{self.pointer}: {why}; `{wording.command('jobs', state=state)}` shows what there is", over=over
            )
        if self._folder and checkpoint.target != self._folder:
            raise errors.CheckpointNotFound(
                f"{self._folder}: {self.pointer} is another one; give this task the checkpoint_conn_id of the job",
                over=False,
            )
        return checkpoint

    def _seen(self, state: State) -> Outcome:
        checkpoint = self._listed(state)
        if checkpoint.status == ABORTED:
            return outcomes.Aborted(checkpoint)
        if checkpoint.status != PENDING:
            if self._awaited is Awaited.ENDED:
                return self._after_completion(checkpoint)
            if self._awaited is Awaited.COMMITTED and not checkpoint.commits_confirmed:
                return self._commits(checkpoint, lost=self._driver_lives(checkpoint) is False)
            return outcomes.Completed(checkpoint)
        if self._awaited is Awaited.ACKNOWLEDGED and not self.coordinator.missing(checkpoint):
            return outcomes.Acknowledged(checkpoint)
        if self._driver_lives(checkpoint) is not False:
            return outcomes.Pending(checkpoint, self._beat)
        return outcomes.DriverLost(checkpoint) if self._needs_driver(checkpoint) else outcomes.Pending(checkpoint, None)

    def _after_completion(self, checkpoint: Checkpoint) -> Outcome:
        if self._completed is None:
            self._completed = time.monotonic()
        lost = self._driver_lives(checkpoint) is False
        state = self.coordinator.journal.catch_up() if lost else self.state  # it may have ended since
        if all(state.over(epoch) for epoch in checkpoint.epochs):
            attempts = [attempt for attempt in map(state.attempt, checkpoint.epochs) if attempt]
            return outcomes.Ended(checkpoint, attempts[-1].outcome if attempts else None)
        if lost:
            return outcomes.NotEnded(checkpoint, "its driver was lost before it had ended")
        if time.monotonic() - self._completed >= checkpoint.timeout_s:
            return outcomes.NotEnded(checkpoint, f"its driver has not ended within {checkpoint.timeout_s:g} s")
        return outcomes.Ending(checkpoint)

    def _commits(self, checkpoint: Checkpoint, *, lost: bool) -> Outcome:
        state = self.coordinator.journal.catch_up() if lost else self.state  # it may have confirmed since
        checkpoint = self._listed(state)
        if checkpoint.commits_confirmed:
            return outcomes.Completed(checkpoint)
        if all(state.over(epoch) for epoch in checkpoint.epochs):
            return outcomes.Unconfirmed(checkpoint, f"attempt {checkpoint.epochs[-1]}, which took it, has ended")
        if lost:
            return outcomes.Unconfirmed(checkpoint, f"the driver of attempt {checkpoint.epochs[-1]} was lost")
        return outcomes.Committing(checkpoint)

    # -- the driver ----------------------------------------------------------------------------------------------------

    def _driver_lives(self, checkpoint: Checkpoint) -> bool | None:
        liveness = self._observer()
        if time.monotonic() - self._read_beat >= liveness.beats.every:
            self._beat = liveness.observe(self._heartbeats(checkpoint))
            self._read_beat = time.monotonic()
        return liveness.alive(self._heartbeats(checkpoint))

    def _may_live(self, keys: Sequence[str]) -> bool:
        """Return whether a launch beats, or it is too early to say."""
        liveness = self._observer()
        liveness.observe(keys)
        return liveness.alive(keys) is not False

    def _observer(self) -> Liveness:
        if self._liveness is None:
            self._liveness = Liveness(self.coordinator.store)
        return self._liveness

    def _heartbeats(self, checkpoint: Checkpoint) -> list[str]:
        return [self.coordinator.keys.attempt_beat(epoch) for epoch in checkpoint.epochs]

    def _needs_driver(self, checkpoint: Checkpoint) -> bool:
        """Return whether a pending checkpoint waits for its driver. An acknowledged gated checkpoint waits for a task."""
        return not checkpoint.request.gated or bool(self.coordinator.missing(checkpoint))

    def _resolve(self, suspected: bool) -> Outcome:
        outcome = self._poll()
        if isinstance(outcome, outcomes.InQueue):
            return self._poll() if self._driver_of_queue_lost() else outcome
        if abandoned := self._abandoned(outcome, suspected):
            if abandoned.status == PENDING:
                self._give_up(abandoned)
                outcome = self._poll()
            else:
                outcome = self._commits(abandoned, lost=True)
        if self._awaited in (Awaited.PUBLISHED, Awaited.ENDED) and isinstance(
            outcome, outcomes.Completed | outcomes.Ending | outcomes.Ended | outcomes.NotEnded
        ):
            publish_due(self.coordinator, outcome.checkpoint.id)
            outcome = replace(outcome, checkpoint=self._listed(self.state))
        return outcome

    def _abandoned(self, outcome: Outcome, suspected: bool) -> Checkpoint | None:
        """Return the checkpoint that waits for a driver that is lost. If that is only ``suspected``, look for its heartbeat."""
        if isinstance(outcome, outcomes.DriverLost):
            return outcome.checkpoint
        if not suspected or not isinstance(outcome, outcomes.Pending | outcomes.Committing):
            return None
        checkpoint = outcome.checkpoint
        if checkpoint.status == PENDING and not self._needs_driver(checkpoint):
            return None
        observer = self._observer()
        return None if observer.wait(self._heartbeats(checkpoint), bound=observer.beats.still) else checkpoint

    def _driver_of_queue_lost(self) -> bool:
        """Return whether the driver for which the request waits in the queue is lost. If so, end the checkpoints before the request: then
        it is triggered, and the next poll ends it.
        """
        ahead = [pending for pending in self.state.pending if self._needs_driver(pending)]
        if not ahead or self._driver_lives(ahead[0]) is not False:
            return False
        for pending in ahead:
            self._give_up(pending)
        return True

    def _give_up(self, checkpoint: Checkpoint) -> None:
        missing = self.coordinator.missing(checkpoint)
        with contextlib.suppress(errors.NotPending):  # the driver lives after all, or another process was faster
            if missing:
                details = self._observer().lost(checkpoint.epochs[-1], self._heartbeats(checkpoint))
                self.coordinator.abort(checkpoint.id, LOST, missing=missing, details=details)
            else:
                self.coordinator.complete(checkpoint.id)

    # -- the end -------------------------------------------------------------------------------------------------------

    def abort(self, reason: str, details: str = "") -> Outcome:
        """Abort the checkpoint. Return ``Aborted``, also if it was aborted before, or its other outcome.

        Raises ``CheckpointNotFound``, and the errors of connection and store.
        """
        checkpoint = self.find()
        if checkpoint.status == PENDING:
            missing = self.coordinator.missing(checkpoint)
            phase = ACKNOWLEDGE if missing else FINALIZE
            with contextlib.suppress(errors.NotPending):
                self.coordinator.abort(checkpoint.id, reason, phase=phase, missing=missing, details=details)
        return self._seen(self.state)
