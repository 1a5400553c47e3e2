"""Drivers whose jobs have a sink: they run the package's own ``Sinks`` on a target in the one store there is. Runs anywhere.

Between two steps a driver remembers what the sink holds as ``Kept``: the log of the target is read anew.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.errors import AlreadyFinished, Fenced, Refused, StoreError
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.transactions import Origin, SinkDetail
from airflow_checkpoint_provider.sinks.log import RunOfSink
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles
from airflow_checkpoint_provider.sinks.staging import rows_key
from airflow_checkpoint_provider.spark.sinks import commits, leftovers, sinks
from airflow_checkpoint_provider.spark.sinks.base import OpenSink, Prepared, Sink, SinkContext
from airflow_checkpoint_provider.spark.sinks.commits import Commits
from airflow_checkpoint_provider.spark.sinks.files import OpenFileSink
from airflow_checkpoint_provider.spark.sinks.sink_state import SinkState
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from airflow_checkpoint_provider.spark.state.states import States
from tests.model import actors as a
from tests.model.actors import AtWork, Memory, Step, Try, Watched, completed
from tests.model.explore import TRIES_TWICE, Next, Process
from tests.model.targets import Below, given

UID = "report"


class TargetSink(Sink):
    """A sink of one folder, without Spark: its rows are texts."""

    kind, target = "file", Below.uri

    def __init__(self, process: Process) -> None:
        self._process = process

    def open(self, context: SinkContext) -> OpenSink:
        opened = self.opened(context)
        opened.files.begin()
        return opened

    def opened(self, context: SinkContext) -> OpenTarget:
        return OpenTarget(self._process, context.by)


class OpenTarget(OpenFileSink):
    """The real sink of files; only Spark does not write the rows."""

    def __init__(self, process: Process, by: RunOfSink) -> None:
        self._store = self.below = Below(process)
        self.files = PublishedFiles(self.below, by, overwrite=False, patience=TRIES_TWICE)
        self._staging = self._commits = self.files
        self._lock = threading.RLock()

    def prepare(self, df: Any, name: str, version: int) -> Prepared:
        staged = self.files.stage(name)
        self.below.place(f"{rows_key(name)}/part-0", df)
        return Prepared(rows=1, bytes=len(df), content=self.files.prepared(staged))


@dataclass(frozen=True)
class Job:
    """A driver at one step: what sinks need of an attempt, and what it knows. ``restored`` and ``kept`` are bytes."""

    process: Process
    coordinator: Coordinator
    epoch: int
    request: str
    restored: bytes
    gated: bool

    @property
    def attempt(self) -> Any:
        """What a sink needs of the real attempt."""
        journal, writer = self.coordinator.journal, SimpleNamespace(
            check_not_fenced=self._check_not_fenced, confirm_commits=self.coordinator.confirm_commits
        )  # fmt: skip
        state = journal.state
        record = state.attempt(self.epoch)
        launch = state.launch(record.launch) if record else None
        run = (state.run(launch.spec.run) if launch else None) or state.runs[-1]
        return SimpleNamespace(
            journal=journal, store=self.process, keys=a.KEYS, epoch=self.epoch, writer=writer, run=run,
            restored=SimpleNamespace(point=record.restore_point if record else None),
        )  # fmt: skip

    def _check_not_fenced(self) -> None:
        with suppress(StoreError):
            self.coordinator.check_not_fenced()

    def _sinks(self) -> Sinks:
        states = Acknowledgement.from_bytes(self.restored).states
        attempt = self.attempt
        return Sinks(cast(Any, None), attempt, States(attempt.run.key, {state.uid: state for state in states}))

    def open(self, kept: bytes) -> bytes:
        """Open the sink: commit what the restore point holds, abort what nobody will commit."""
        found = self._sinks()
        state = found.claim(UID, TargetSink(self.process), gated=self.gated)
        self._commits(found).confirm_restored()
        return kept_of(state)

    def write(self, kept: bytes, row: str) -> bytes:
        """Prepare a row, unless the restore point holds it. Its name is not by chance."""
        found, state = self._opened(kept)
        name = hashlib.sha256(self.process.nonce().encode()).hexdigest()[:16]
        with patch.object(sinks, "secrets", SimpleNamespace(token_hex=lambda _: name)):
            found.write(state, cast(Any, row), Origin(plan=row, inputs=""))
        return kept_of(state)

    def save(self, kept: bytes) -> bytes:
        """A checkpoint with what is written so far."""
        completed(self.process, self.coordinator, self._acknowledged(kept))
        return kept

    def leave(self, kept: bytes) -> bytes:
        """The same; anyone may complete it."""
        self._acknowledged(kept)
        return kept

    def gate(self, kept: bytes) -> bytes:
        """Acknowledge the gated checkpoints that are pending."""
        for pending in self.coordinator.journal.catch_up().pending:
            if pending.request.gated:
                self._acknowledge(kept, pending.id)
        return kept

    def audit(self, kept: bytes) -> bytes:
        """A gated checkpoint, which somebody finalizes at once."""
        number = self.coordinator.trigger(Request(token=self.request, gated=True))
        self._acknowledge(kept, number)
        Coordinator(Watched(self.process)).complete(number, finalize=True)
        return kept

    def commit(self, kept: bytes) -> bytes:
        """Commit what is due, as the journal says now."""
        found, state = self._opened(kept)
        self.coordinator.journal.catch_up()
        commits_of = self._commits(found)
        while (due := commits_of.due()) and found.commit(*due[0]):
            pass  # an aborted write fails the attempt in the end
        return kept_of(state)

    def confirm(self, kept: bytes) -> bytes:
        """Say in the journal what is committed."""
        found, _ = self._opened(kept)
        own = [one for one in self.coordinator.state.retained if self.epoch in one.epochs and not one.commits_confirmed]
        if own and self._commits(found).done(own[-1]):
            self.coordinator.confirm_commits(own[-1].id)
        return kept

    def end(self, kept: bytes) -> bytes:
        """End, if all is committed."""
        found, state = self._opened(kept)
        self.coordinator.journal.catch_up()
        if not self._commits(found).due() and not state.uncommitted():
            AtWork(self.process, self.coordinator, self.epoch, self.request, self.restored).end("finished")
            self.process.says("ended well")
        return kept

    def _acknowledged(self, kept: bytes) -> int:
        at_work = AtWork(self.process, self.coordinator, self.epoch, self.request, self.restored)
        number = at_work._trigger()
        self._acknowledge(kept, number)
        return number

    def _acknowledge(self, kept: bytes, number: int) -> None:
        at_work = AtWork(self.process, self.coordinator, self.epoch, self.request, self.restored)
        found, _ = self._opened(kept)
        self.coordinator.acknowledge(at_work._word(number, tuple(found._records("end"))))

    def _opened(self, kept: bytes) -> tuple[Sinks, SinkState]:
        found, data = self._sinks(), json.loads(kept)
        sink, detail = TargetSink(self.process), SinkDetail.from_json(data["detail"])
        held = {made.write: made for made in detail.transactions if made.name in data["held"]}
        state = SinkState(
            UID, sink, sink.opened(found._context(UID)), detail.gated, detail.version, list(detail.transactions), held,
            tuple(data["replaces"]), data["writes"], detail.position,
        )  # fmt: skip
        found.opened[UID] = state
        return found, state

    def _commits(self, found: Sinks) -> Commits:
        with patch.object(commits, "Workers", lambda *_: None):  # no thread: steps come one after the other
            return Commits(self.attempt, found)


def kept_of(state: SinkState) -> bytes:
    """What a driver knows of its sink after a step."""
    held = [made.name for made in state.held.values()]
    detail = state.detail().to_json()
    return canonical({"detail": detail, "held": held, "replaces": state.replaces, "writes": state.writes})


def newest(actor: tuple[Any, ...]) -> bytes:
    """Return the newest transaction of a driver at work."""
    detail = SinkDetail.from_json(json.loads(actor[5])["detail"])
    return given(detail.transactions[-1])


STEPS: dict[str, Callable[..., bytes]] = {
    "open": Job.open, "write": Job.write, "save": Job.save, "leave": Job.leave, "gate": Job.gate, "audit": Job.audit, "commit": Job.commit,
    "confirm": Job.confirm, "end": Job.end,
}  # fmt: skip
ONCE = ("open", "write")  # an error of these ends the script


def driver(
    process: Process, mine: Try, script: tuple[Step, ...], gated: bool = False, again: bool = True
) -> Next | None:
    """As that of ``actors``; then it works with its sink."""
    following = a.driver(process, mine, script, again)
    if following is None:
        return None
    if following.function is not a.work:
        return Next(driver, mine, script, gated, False)
    _, epoch, memory, restored = following.arguments
    return Next(work, script, epoch, memory, restored, b"", gated)


def work(
    process: Process, script: tuple[Step, ...], epoch: int, memory: Memory, restored: bytes, kept: bytes, gated: bool,
    again: int = 2,
) -> Next | None:  # fmt: skip
    """Take the steps of ``STEPS`` in turn; one whose answer was lost is taken again."""
    if not script:
        return None
    journal = Watched(process, memory, epoch)
    job = Job(process, Coordinator(journal, epoch), epoch, f"{process.name}-{len(script)}", restored, gated)
    (step, *what), rest = script[0], script[1:]
    try:
        with quiet():
            kept = STEPS[step](job, kept, *what)
    except Fenced:
        return None
    except Refused:
        if step in ONCE:
            raise
    except StoreError:
        if not again or step in ONCE:
            return None
        rest, again = script, again - 1
    return Next(work, rest, epoch, Memory(journal.state), restored, kept, gated, again)


@contextmanager
def quiet() -> Iterator[None]:
    """Print no lines."""
    with ExitStack() as stack:
        for module in (sinks, leftovers, commits):
            stack.enter_context(patch.object(module, "say", lambda _: None))
        yield


def rescuer(process: Process, script: tuple[Step, ...], gated: bool = False) -> Next | None:
    """Alone in the end: the next try of the newest run, or a clear of it if it finished; its driver to the end."""
    journal = Watched(process)
    state = journal.catch_up()
    run = state.runs[-1]
    launch = state.launch(run.launch)
    assert launch
    mine = Try(run=run.key, number=launch.latest_try + 10, generation=run.generation)
    try:
        journal.append(mine.plan())
    except AlreadyFinished:
        mine = replace(mine, generation=mine.generation + 1)
        journal.append(mine.plan())
    return Next(driver, mine, script, gated)
