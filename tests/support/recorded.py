"""Histories as tasks and drivers write them, at times that a test sets, with real files in a store. Runs anywhere."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By, Entry
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.restore import Restored, examine
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import BY_DRIVER, LaunchSpec, Request, Token
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import History, Keys, file_set_path
from airflow_checkpoint_provider.protocol.launch_records import Launch
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, LoopDetail, Measures, StateSnapshot
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import MemoryStore, Store
from tests.support.garbage import retire
from tests.support.histories import stopped

RUN = "scheduled__2026-11-20"
DAY = "2026-11-20"


def at(time: str, day: str = DAY) -> str:
    """``"22:00:20"`` of the day on which the run begins; hours before noon are of the day after."""
    return f"{'2026-11-21' if day == DAY and time < '12' else day}T{time}.000Z"


class Recorded:
    """One job's history, or that of one item, written through the journal by real commands. ``scope`` "" is the job scope."""

    def __init__(
        self,
        store: Store | None = None,
        job: str = "flights_etl.delays",
        scope: str = RUN,
        item: str | None = None,
        map_index: int | None = None,
    ) -> None:
        self.store = store or MemoryStore("recorded")
        self.job, self.scope, self.item, self.map_index = job, scope, item, map_index
        self.keys = Keys(History(job, scope or None, item).prefix)
        self.clock = at("22:00:20")
        nonces = itertools.count()
        journal = Journal(
            self.store,
            self.keys,
            By("test", "test", "here"),
            nonce=lambda: f"{next(nonces):032x}",
            clock=lambda: self.clock,
        )
        self.coordinator = Coordinator(journal)
        self.before = State()
        self.restored = Restored()
        self.states: dict[str, StateSnapshot] = {}
        self.unused: tuple[str, ...] = ()  # stages that the script of this attempt does not use

    @property
    def state(self) -> State:
        return self.coordinator.state

    # -- launches ----------------------------------------------------------------------------------------------------

    def token(self, run: str = "", generation: int = 0) -> Token:
        dag, _, task = self.job.rpartition(".")
        return Token(dag=dag, run=run or self.scope, task=task, item=self.item, generation=generation)

    def launched(self, time: str, try_number: int = 1, run: str = "", generation: int = 0, **other: Any) -> Launch:
        """As ``CheckpointedSparkSubmitOperator`` plans: look at the restore point, then one entry."""
        self.clock = at(time)
        self.before = self.coordinator.journal.catch_up()
        asks = self.token(run, generation)
        plan = c.PlanLaunch(
            spec=LaunchSpec(
                token=asks,
                try_number=try_number,
                owner=asks.owner,
                run=asks.run,
                run_after=None,
                started_at=self.clock,
                restore=other.pop("restore", "latest"),
                memory=other.pop("memory", {}),
                map_index=self.map_index,
            ),
            incarnation="1ncarnation",
            job=self.job,
            item=self.item,
            scope=self.scope,
            **other,
        )
        self.restored = examine(self.coordinator, self.before, plan.base or self.before.restore_point())
        self.coordinator.journal.append(plan)
        launch = self.state.current_launch()
        assert launch
        if self.restored.point != launch.restore_point:
            self.restored = examine(self.coordinator, self.state, launch.restore_point)
        return launch

    def attached(self, time: str, application: str = "digest", **checkpointing: Any) -> int:
        """The driver of the current launch starts its attempt, and has what it restores."""
        self.clock = at(time)
        launch = self.state.current_launch()
        assert launch
        start = c.StartAttempt(
            token=launch.spec.token, try_number=launch.spec.try_number, driver=f"driver of {launch.number}", application_digest=application,
            checkpointing=checkpointing,
        )  # fmt: skip
        self.coordinator.journal.append(start)
        seal = self.restored.seal
        self.states = dict(seal.states) if seal else {}
        return self.state.last_epoch

    def started(self, time: str, try_number: int = 1, run: str = "", generation: int = 0, **other: Any) -> int:
        self.launched(time, try_number, run, generation, **other)
        return self.attached(time)

    def ended(
        self,
        time: str,
        outcome: str = "finished",
        exit_code: int | None = 0,
        reported_by: str = BY_DRIVER,
        cause: str = "",
    ) -> None:
        self.clock = at(time)
        self.coordinator.journal.append(
            c.EndAttempt(
                epoch=self.state.last_epoch,
                outcome=outcome,
                exit_code=exit_code,
                reported_by=reported_by,
                from_task=reported_by == "task",
                cause=cause,
            )
        )

    def launch_ended(self, time: str, outcome: str = "failed", exit_code: int | None = 1, cause: str = "") -> None:
        """The driver of the current launch ended before it attached."""
        self.clock = at(time)
        launch = self.state.current_launch()
        assert launch
        end = c.EndLaunch(
            launch=launch.number, try_number=launch.latest_try, outcome=outcome, exit_code=exit_code, cause=cause
        )
        self.coordinator.journal.append(end)

    def told_to_stop(self, time: str, reason: str = "the task was killed") -> None:
        self.clock = at(time)
        launch = self.state.current_launch()
        assert launch
        self.coordinator.journal.append(
            c.RequestStop(launch=launch.number, try_number=launch.latest_try, by=launch.spec.owner, reason=reason)
        )

    def suspended(self, time: str) -> None:
        """As a stop with a savepoint leaves the job."""
        self.clock = at(time)
        state = self.coordinator.journal.catch_up()
        entry = Entry(
            inc=state.incarnation, n=state.n + 1, nonce="suspended", at=self.clock, by={},
            events=stopped(state.next_id, state.last_epoch, state.job),
        )  # fmt: skip
        self.store.create(self.keys.entry(entry.n), entry.to_bytes())
        self.coordinator.journal.catch_up()

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def stage(self, uid: str, triggered: str, completed: str, *, work_s: float, kib: float, sync_s: float = 0.3) -> int:
        """A stage's rows are in its files; its end is a checkpoint. Old ones are retired, as drivers do."""
        path = file_set_path(uid, self.state.last_epoch, f"nonce{self.state.next_id}")
        body = b"r" * int(kib * 1024 / 2)
        files = tuple(File(name=f"part-{index}.parquet", bytes=len(body), rows=500) for index in range(2))
        for file in files:
            self.store.create(f"{self.keys.file_set(path)}/{file.name}", body)
        file_set = FileSet(path=path, files=files)
        measures = Measures(barrier=f"stage '{uid}'", work_s=work_s, sync_s=sync_s, new_bytes=file_set.bytes)
        self.states[uid] = StateSnapshot(uid=uid, kind="stage", run=self._run, file_sets=(file_set,), measures=measures)
        return self.completed(f"stage '{uid}'", triggered, completed)

    def item_done(self, uid: str, triggered: str, completed: str, *, work_s: float) -> int:
        """An item of ``job.once`` is done. Its end is a checkpoint."""
        barrier = f"item 1 of loop '{uid}'"
        measures = Measures(barrier=barrier, work_s=work_s)
        loop = LoopDetail(application="a", path=file_set_path(uid, self.state.last_epoch, "loop"), turns=1)
        self.states[uid] = StateSnapshot(uid=uid, kind="once", run=self._run, value=["d"], measures=measures, loop=loop)
        return self.completed(barrier, triggered, completed)

    def value(self, uid: str, value: Any, kind: str = "value") -> None:
        self.states[uid] = StateSnapshot(
            uid=uid, kind=kind, run=self._run, value=value, measures=Measures(barrier="end")
        )

    def triggered(self, barrier: str, time: str) -> int:
        self.clock = at(time)
        return self.coordinator.trigger(
            Request(token=f"barrier {self.state.next_id}", timeout_s=600.0, barrier=barrier)
        )

    def completed(self, barrier: str, triggered: str, completed: str) -> int:
        number = self.triggered(barrier, triggered)
        self.clock = at(completed)
        return self.completed_now(number)

    def completed_now(self, number: int) -> int:
        """The driver acknowledges a pending checkpoint, and completes it."""
        self.states = {
            uid: state
            if state.measures.checkpoint
            else replace(state, measures=replace(state.measures, checkpoint=number))
            for uid, state in self.states.items()
        }
        ack = Acknowledgement(
            inc=self.state.incarnation, id=number, application="", epoch=self.state.last_epoch, nonce=f"nonce {number}",
            run=self._run, states=tuple(self.states[uid] for uid in sorted(self.states)), unused=self.unused,
        )  # fmt: skip
        self.coordinator.acknowledge(ack)
        self.coordinator.complete(number)
        retire(self.coordinator, self.clock)
        return number

    def aborted(self, number: int, time: str, reason: str, words: str = "") -> None:
        self.clock = at(time)
        self.coordinator.abort(number, reason, missing=("",), details=words)

    @property
    def _run(self) -> str:
        launch = self.state.current_launch()
        assert launch
        return launch.spec.run


def three_stages(recorded: Recorded) -> None:
    """A first attempt that completed ``clean``, ``weather`` and ``planes`` and died in ``delays``."""
    recorded.launched("22:00:20")
    recorded.attached("22:00:38")
    recorded.stage("clean", "23:12:32", "23:12:40", work_s=4320, kib=18.0)
    recorded.stage("weather", "00:52:23", "00:52:31", work_s=6000, kib=29.1)
    recorded.stage("planes", "02:14:26", "02:14:33", work_s=4920, kib=14.1, sync_s=0.4)
    recorded.triggered("stage 'delays'", "02:50:50")


def finished_and_running(store: Store, kib: float) -> Recorded:
    """Write a run that finished after a retry, and the next run, which has completed ``clean``. Return the next run."""
    finished = Recorded(store)
    three_stages(finished)
    second_attempt(finished)
    retire(finished.coordinator, finished.clock)
    running = Recorded(store, scope="scheduled__2026-11-21")
    running.started("09:00:00")
    running.stage("clean", "10:12:32", "10:12:40", work_s=4320, kib=kib)
    return running


def second_attempt(recorded: Recorded) -> None:
    """The retry that goes on from there to the end."""
    recorded.launched("03:02:10", try_number=2)
    recorded.attached("03:02:19")
    recorded.stage("delays", "03:42:01", "03:42:02", work_s=2380, kib=1.9, sync_s=0.2)
    recorded.value("rows", 1904112)
    recorded.completed("end", "03:44:09", "03:44:10")
    recorded.ended("03:44:12")


def shared_by_two_runs() -> Recorded:
    """Return a history whose first run has finished, and whose second run goes on."""
    recorded = Recorded(scope="")
    recorded.started("22:00:20", run="one")
    recorded.stage("clean", "22:10:00", "22:10:03", work_s=500, kib=30)
    recorded.ended("22:20:00")
    recorded.started("23:00:00", run="two")
    recorded.stage("clean", "23:10:00", "23:10:03", work_s=500, kib=30)
    return recorded
