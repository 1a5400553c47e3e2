"""The verbs that ask a running job for something and wait for it: trigger, savepoint, stop. Runs anywhere.

What was asked for stands in the journal: whoever stops waiting takes nothing back.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from airflow_checkpoint_provider.cli import locate
from airflow_checkpoint_provider.cli.change import DRY_RUN, Approval, by, confirm
from airflow_checkpoint_provider.cli.output import Report
from airflow_checkpoint_provider.cli.show import entry
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat, Beats, Liveness, beats_of
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.errors import (
    Aborted,
    CheckpointNotFound,
    NotRunning,
    NotStopped,
    Queued,
    StillPending,
    StoreError,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import CHECKPOINT, Kind
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, Checkpoint, State
from airflow_checkpoint_provider.protocol.wording import restore
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import messages
from airflow_checkpoint_provider.text.units import ENDED, NONE, labelled, table

EVERY = 1.0  # seconds between two looks; an idle one is two small reads
ORIGIN = "cli"
SAVEPOINTS = "savepoints"
"""Where savepoints go that were not sent anywhere else: the folder of this name below the root."""

ASKED = ("ID", "KIND", "STATE", "POINTER")
STOPPED = ("JOB", "RUN", "ATTEMPT", "KIND", "TARGET")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is asked of a job. ``to`` is where a savepoint's own folder will lie."""

    kind: Kind = CHECKPOINT
    to: str | None = None
    name: str | None = None
    pinned: bool = False


@dataclass(frozen=True)
class Patience:
    """``wait``: for the outcome; ``seconds``: so long at most, None for as long as it takes."""

    wait: bool = True
    seconds: float | None = None


def ask(store: Store, job: str, run: str | None, wish: Wish, patience: Patience) -> Report:
    """A checkpoint or a savepoint of a job that goes on."""
    asking = _Asking(store, job, run, wish, patience)
    if not patience.wait:
        return asking.report() if asking.begun() else asking.queued()
    asking.begin()
    asking.completed()
    asking.published()
    return asking.report()


def stop(store: Store, job: str, run: str | None, wish: Wish, approval: Approval) -> Report:
    """A savepoint after which the job ends and is suspended."""
    asking = _Asking(store, job, run, wish, Patience())
    announced = asking.announced()
    lines = announced.lines or []
    if approval.dry_run:
        return replace(announced, lines=[*lines, DRY_RUN])
    confirm(job, lines, approval)
    asking.begin()
    asking.completed()
    asking.ended()
    resume = f"{job} is suspended: nothing starts it again before `{restore(asking.state, 'latest')}`"
    return asking.report(lines if approval.yes else [], resume)


class _Asking:
    """One request, from its entry to its outcome. What it waits for is said on stderr, one line per change."""

    def __init__(self, store: Store, job: str, run: str | None, wish: Wish, patience: Patience) -> None:
        self._found, self._run = locate.meant(store, job, run)
        self._wish = wish
        self._coordinator = Coordinator(Journal(store, self._found.keys, by()))
        self._liveness = Liveness(store)
        self._token = f"checkpoints {secrets.token_hex(8)}"
        self._target = _target(store, wish)
        self._until = None if patience.seconds is None else time.monotonic() + patience.seconds
        self._number: int | None = None
        self._said = ""

    # -- asking ------------------------------------------------------------------------------------------------------

    def announced(self) -> Report:
        """What asking would mean now. Raises why it would be refused."""
        state = self._coordinator.journal.catch_up()
        self._is_meant(state)
        self._coordinator.journal.foresee(
            c.Trigger(request=Request(token=self._token, kind=self._wish.kind.name, origin=ORIGIN, folder=self._target))
        )
        running = state.running()
        assert running
        assert self._target
        kind, run = self._wish.kind.name, state.launch(running.launch)
        data = {
            "job": state.job, "run": run.spec.run if run else "", "attempt": running.epoch, "kind": kind, "target": self._target,
        }  # fmt: skip
        first = "ends its data, takes" if self._wish.kind.drains else "takes"
        lines = [
            f"STOP {state.job}: attempt {running.epoch} {first} a savepoint at its next barrier, and ends",
            labelled("savepoint", f"in a folder of its own below {self._target}"),
            labelled("afterwards", "the job is suspended: no schedule and no retry starts it before a restore"),
        ]
        return Report(STOPPED, [[str(value) for value in data.values()]], data, lines)

    def begin(self) -> None:
        """Raises what refuses it. Where it has to wait for others, this waits."""
        self._is_meant(self._coordinator.journal.catch_up())
        self._number = self._wait(self._triggered)

    def begun(self) -> bool:
        """Whether it was triggered at once. Raises what refuses it."""
        self._is_meant(self._coordinator.journal.catch_up())
        self._number = self._triggered()
        return self._number is not None

    def queued(self) -> Report:
        """Of a request that waits for others."""
        kind = self._wish.kind.name
        data = {"id": None, "kind": kind, "state": "queued", "pointer": None}
        row = [NONE, kind, "queued", NONE]
        return Report(ASKED, [row], data, table(ASKED, [row]))

    def _is_meant(self, state: State) -> None:
        """Beside what the journal refuses: another run than the named one is not meant."""
        launch = state.current_launch()
        if self._run is not None and launch is not None and launch.spec.run != self._run:
            raise NotRunning(
                f"{state.job}, run {self._run}: it does not run any more, run {launch.spec.run} does; name that"
            )

    def _triggered(self) -> int | None:
        wish = self._wish
        try:
            request = Request(
                token=self._token,
                kind=wish.kind.name,
                origin=ORIGIN,
                owner=by().owner,
                folder=self._target,
                name=wish.name,
                pinned=wish.pinned,
            )
            return self._coordinator.trigger(request, run=self._run)
        except Queued as error:
            self._say(error.message.partition(";")[0])
            return None

    def report(self, before: Sequence[str] = (), after: str = "") -> Report:
        """The row of what was asked for, as `list` has it, with its pointer."""
        one = entry(self._coordinator.store, replace(self._found, state=self.state), self._checkpoint)
        row = [f"chk-{one['id']}", one["kind"], one["state"], one["pointer"] or NONE]
        return Report(ASKED, [row], one, [*before, *table(ASKED, [row]), *filter(None, [after])])

    # -- waiting -----------------------------------------------------------------------------------------------------

    def completed(self) -> None:
        """Raises ``Aborted``."""
        self._wait(self._outcome)

    def _outcome(self) -> bool | None:
        state = self._coordinator.journal.poll()
        found = self._checkpoint
        if found.status == ABORTED:
            raise Aborted(messages.will_not_complete(state, found), id=found.id)
        if found.status == PENDING:
            beat = self._beat()
            doing = f"; now: {beat.doing}" if beat and beat.doing else ""
            driver = f"its driver takes it at the next barrier{doing}" if beat else "no heartbeat of its driver is seen"
            self._say(f"chk-{found.id} of {state.job}: triggered, {driver}")
            return None
        return True

    def published(self) -> None:
        """By its driver; by this process if that is gone. Nothing to wait for where it is no savepoint."""
        self._wait(self._at_target)

    def _at_target(self) -> bool | None:
        state = self._coordinator.journal.poll()
        found = self._checkpoint
        if found.published or not found.savepoint:
            return True
        if state.over(found.epochs[0]) or self._beat() is None:
            publish_due(self._coordinator, found.id)
            return True
        self._say(f"chk-{found.id} of {state.job}: completed, its driver publishes it")
        return None

    def ended(self) -> None:
        """The attempt, as suspended. Raises ``NotStopped`` if it does not, or not within a minute."""
        end = time.monotonic() + Beats.configured().still
        if not self._wait(lambda: self._attempt_over(end)):
            with contextlib.suppress(StoreError):
                publish_due(self._coordinator, self._checkpoint.id)
            raise self._not_stopped("its driver has not ended")
        self.published()
        attempt = self.state.attempt(self._checkpoint.epochs[0])
        how = attempt.how if attempt else None
        if how != "suspended":
            raise self._not_stopped(f"its driver {ENDED[how] if how else 'was replaced'}")

    def _attempt_over(self, end: float) -> bool | None:
        state = self._coordinator.journal.poll()
        if state.over(self._checkpoint.epochs[0]):
            return True
        self._say(f"chk-{self._checkpoint.id} of {state.job}: completed, its driver ends")
        return None if time.monotonic() < end else False

    def _not_stopped(self, why: str) -> NotStopped:
        stopped = self._checkpoint
        return NotStopped(messages.not_stopped(self.state, stopped, why), pointer=stopped.target)

    def _beat(self) -> Beat | None:
        """Of its driver, if that seems to live."""
        keys = beats_of(self._coordinator.keys, self.state)
        beat = self._liveness.look(keys)
        return None if self._liveness.alive(keys) is False else beat

    @property
    def _checkpoint(self) -> Checkpoint:
        found = self._coordinator.state.checkpoint(self._number)
        if found is None:
            raise CheckpointNotFound(f"chk-{self._number} is not listed any more; `list {self._found.state.job}`")
        return found

    @property
    def state(self) -> State:
        return self._coordinator.state

    def _wait(self, look: Callable[[], T | None]) -> T:
        """What ``look`` finds at last. Raises ``StillPending`` when time is up or a person has waited enough."""
        try:
            while (found := self._looked(look)) is None:
                if self._until is not None and time.monotonic() >= self._until:
                    raise self._left("time is up")
                time.sleep(EVERY)
            return found
        except KeyboardInterrupt:
            raise self._left("interrupted") from None

    def _looked(self, look: Callable[[], T | None]) -> T | None:
        """What was asked for stands, whether the store answers now or not."""
        try:
            return look()
        except StoreError as error:
            if self._number is None or error.permanent:
                raise
            self._say(f"{error.message}; looking again")
            return None

    def _left(self, why: str) -> StillPending:
        found = None if self._number is None else self._checkpoint
        what = "the request waits for its turn"
        if found:
            done = "completed" if found.published else "completed, but not published yet"
            what = f"chk-{found.id} is {'pending' if found.status == PENDING else done}"
        return StillPending(
            f"{why}: {what}, and nothing was taken back; `list {self._found.state.job}` shows what becomes of it"
        )

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            print(text, file=sys.stderr, flush=True)


def _target(store: Store, wish: Wish) -> str | None:
    """The URI as the store behind it writes it, so that a wrong one is refused before anybody is asked."""
    if not wish.kind.savepoint:
        return None
    return store.beside(wish.to).uri if wish.to else f"{store.uri}/{SAVEPOINTS}"
