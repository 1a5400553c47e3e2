"""Attempts of one run that write to a folder: the real ``Sinks`` and ``FileSink``, whose rows are texts. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.coordinator.assignment import AllowanceOption, check_allowance
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import LoopDetail, StateSnapshot
from airflow_checkpoint_provider.protocol.transactions import Origin, SinkRecord
from airflow_checkpoint_provider.sinks.log import RunOfSink
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles
from airflow_checkpoint_provider.sinks.staging import rows_key
from airflow_checkpoint_provider.spark import FileSink, Prepared, SinkContext
from airflow_checkpoint_provider.spark.sinks import names
from airflow_checkpoint_provider.spark.sinks import sinks as package
from airflow_checkpoint_provider.spark.sinks.files import OpenFileSink
from airflow_checkpoint_provider.spark.sinks.sink_state import SinkState
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from airflow_checkpoint_provider.spark.sinks.surplus import Surplus
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.targets import visible

UID = "report"


class OpenFolder(OpenFileSink):
    """The real sink of files; only Spark does not write the rows."""

    def __init__(self, store: MemoryStore, options: FileSink, context: SinkContext) -> None:
        by = RunOfSink(history=context.history, run=context.run, uid=context.uid, generation=context.generation)
        self._options, self._store, self._lock = options, store, threading.RLock()
        overwrite = options.mode == "overwrite"
        self._staging = self._commits = PublishedFiles(store, by, overwrite=overwrite, also=context.also, patience=0)
        self.in_order = options.mode == "overwrite"
        self._commits.begin()

    def prepare(self, df: Any, name: str, version: int) -> Prepared:
        staged = self._staging.stage(name)
        self._store.create(f"{rows_key(name)}/part-0", df.encode())
        return Prepared(rows=1, bytes=len(df), content=self._staging.prepared(staged))


@dataclass
class Attempts:
    """The attempts of a run. ``held`` is what its newest checkpoint holds of each sink, ``target`` the folder."""

    patch: pytest.MonkeyPatch
    target: MemoryStore = field(default_factory=MemoryStore)
    held: dict[str, StateSnapshot] = field(default_factory=dict)
    journaled: list[SinkRecord] = field(default_factory=list)  # of sinks that the checkpoint does not hold
    run_key: str = "run"
    epoch: int = 0
    history: str = "root/j"

    def begin(self, *, generation: int = 0, allowed: AllowanceOption = False, elsewhere: bool = False) -> Sinks:
        """Begin an attempt at the newest checkpoint. ``elsewhere``: another history has taken it."""
        self.epoch += 1
        self.patch.setattr(package, "abort_leftovers", lambda *_: None)  # it asks the journal
        for module in (names, package):
            self.patch.setattr(module, "restore", lambda _, *words: f"restore {' '.join(words)}")
        records = {
            uid: SinkRecord(uid=uid, version=held.sink.version, run=held.run, target=held.sink.target)
            for uid, held in self.held.items()
            if held.sink and not elsewhere
        }
        records |= {record.uid: record for record in self.journaled}
        state = SimpleNamespace(
            job="j", incarnation="i", branch=SimpleNamespace(rewind_sink=False), checkpoint=lambda _: None,
            sink=lambda uid: records.get(uid, SinkRecord(uid=uid)), sinks=[*records.values()],
        )  # fmt: skip
        attempt: Any = SimpleNamespace(
            journal=SimpleNamespace(state=state), store=MemoryStore(), keys=Keys(self.history), epoch=self.epoch,
            run=SimpleNamespace(key=self.run_key, generation=generation, started_at="2026-01-01T00:00:00+00:00"),
            writer=SimpleNamespace(check_not_fenced=lambda: None), restored=SimpleNamespace(point=None),
        )  # fmt: skip
        seal: Any = SimpleNamespace(states=self.held, applications={})
        states = States.restored(seal, self.run_key, elsewhere=elsewhere)
        return Sinks(cast(Any, None), attempt, states, elsewhere=elsewhere, allowed=check_allowance(allowed))

    def fork(self) -> Attempts:
        """Return the attempts of another job, whose run has the same name. Its first one begins at the newest checkpoint of this one, and
        dies after a checkpoint of its own, before it opens a sink."""
        fork = replace(self, held=dict(self.held), history="root/fork", epoch=0)
        fork.checkpoint(fork.begin(elsewhere=True))
        return fork

    def open(
        self, sinks: Sinks, uid: str = UID, *, gated: bool = False, path: str = "/out", **options: Any
    ) -> SinkState:
        """Open a sink of the folder."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileSink, "open", lambda sink, context: OpenFolder(self.target, sink, context))
            return sinks.claim(uid, FileSink(path, **options), gated=gated)

    def checkpoint(self, sinks: Sinks, *, publishes: bool = True) -> None:
        """Complete a checkpoint, and commit what it publishes."""
        self.held |= {record.uid: record for record in sinks._states.records("here")}
        self.held |= {uid: cast(StateSnapshot, snapshot.record) for uid, snapshot in sinks.pin("here").items()}  # type: ignore[attr-defined]
        sinks._states.snapshots |= self.held
        for state in sinks.opened.values() if publishes else ():
            for transaction in state.uncommitted():
                sinks.commit(state, transaction)

    def end(self, sinks: Sinks, allowed: AllowanceOption = False, kept: Collection[LoopDetail] = ()) -> None:
        """End the script: ``allowed`` are the job's decisions, ``kept`` the loops that it keeps."""
        again = "checkpoints restore job --from run-start"
        Surplus(
            sinks, sinks._states, sinks._attempt.journal.state.sinks, kept, check_allowance(allowed), again
        ).take_out()

    def finish(self, sinks: Sinks, kept: Collection[LoopDetail] = ()) -> None:
        """End the script, and take the last checkpoint."""
        self.end(sinks, kept=kept)
        self.checkpoint(sinks)

    def run(self, *rows: str, application: str = "second", **options: Any) -> Sinks:
        """Let an attempt write ``rows``, a write for each, and complete a checkpoint."""
        sinks = self.begin()
        state = self.open(sinks, **options)
        for text in rows:
            write(sinks, state, text, application)
        self.checkpoint(sinks)
        return sinks

    @property
    def readers_see(self) -> list[str]:
        return visible(self.target)


def write(sinks: Sinks, state: SinkState, text: str, application: str = "second") -> None:
    """Write one row."""
    sinks.write(state, cast(Any, text), Origin(plan=text, inputs="", application=application))
