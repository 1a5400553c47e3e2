"""The timer of checkpoints, driven without Spark: its time passes only between two polls. Runs anywhere."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED
from airflow_checkpoint_provider.protocol.commands import LocateQuery
from airflow_checkpoint_provider.protocol.kinds import PERIODIC
from airflow_checkpoint_provider.spark.queries import timer as module
from airflow_checkpoint_provider.spark.queries import unstarted
from airflow_checkpoint_provider.spark.queries.queries import Queries
from airflow_checkpoint_provider.spark.queries.query import Query
from airflow_checkpoint_provider.spark.queries.timer import CheckpointTimer
from airflow_checkpoint_provider.spark.state.snapshot import Snapshot
from tests.support.faults import Call, Fault, FaultyStore, served
from tests.support.saved import memory
from tests.support.waiting import wait_until
from tests.unit.spark.driver import Driver, Left, Recording, ask
from tests.unit.spark.queries.stored_queries import saved


class Clock:
    """Seconds that pass only while the timer waits for its next look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Running:
    """A query that runs until it is ended."""

    uid = "a"
    upstreams: Mapping[str, object] = {}

    def __init__(self) -> None:
        self.active, self.caught_up, self.handled = True, True, threading.Event()

    def runs(self) -> bool:
        return self.active

    def failed(self) -> None:
        return None

    def settle(self) -> bool:
        return False

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing: it never stands still."""


class Unpinned(Queries):
    """Queries of which no checkpoint holds anything."""

    def pin(self, barrier: str) -> dict[str, Snapshot]:
        return {}


class Timer:
    """The timer of a driver with one query, and when which checkpoints were triggered."""

    def __init__(self, store: FaultyStore, clock: Clock, **checkpointing: Any) -> None:
        self.clock = clock
        config = CheckpointConfig(**checkpointing)
        options = {"retention": KeepAll()} | checkpointing
        self.driver = Driver(
            store,
            clock=clock.monotonic,
            streams=lambda attempt, states: Unpinned(cast(Any, None), attempt, states, config),
            **options,
        )
        self.driver.pin(Recording("counts"))
        self.queries: Queries = self.driver.streams
        self.timer = CheckpointTimer(self.driver.attempt, self.queries, self.driver.checkpointer, config)
        self.query = Running()
        self.queries._running = cast(Any, {"a": self.query})
        self.driver.states.claimed_queries.add("a")
        self.triggered = dict[int, tuple[float, str]]()  # by id: when, and by whom
        self.ended = dict[int, float]()  # by id: when
        self._plan = dict[float, Callable[[], object]]()

    def run(self, until: float, plan: Mapping[float, Callable[[], object]] | None = None) -> list[float]:
        """Let the time pass, and call what ``plan`` says at its moments. Return when the timer triggered checkpoints."""
        self._until, self._plan = until, dict(plan or {})
        self.timer._ending = cast(Any, SimpleNamespace(wait=self._wait, is_set=lambda: False))
        self.timer._serve()
        return [when for when, origin in self.triggered.values() if origin == PERIODIC]

    def _wait(self, seconds: float) -> bool:
        self._note()
        self.clock.now += seconds
        for moment in [moment for moment in self._plan if moment <= self.clock.now]:
            self._plan.pop(moment)()
            self._note()
        return self.clock.now > self._until

    def _note(self) -> None:
        if not self.driver.checkpointer._deletions.within(0.0):
            self.driver.catch_up()
        for checkpoint in self.driver.attempt.journal.state.checkpoints:
            self.triggered.setdefault(checkpoint.id, (self.clock.now, checkpoint.request.origin))
            if checkpoint.ended_at:
                self.ended.setdefault(checkpoint.id, self.clock.now)

    def completed(self) -> int:
        return self.driver.attempt.journal.state.counts.get("completed", 0)


Make = Callable[..., Timer]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(unstarted, "time", clock)
    monkeypatch.setattr(random, "uniform", lambda least, most: most)
    return clock


@pytest.fixture
def timer(store: FaultyStore, clock: Clock) -> Iterator[Make]:
    """Return a function that makes the timer. The first delay is a whole interval."""
    made = list[Timer]()

    def make(**checkpointing: Any) -> Timer:
        made.append(Timer(store, clock, **checkpointing))
        return made[-1]

    yield make
    store.plan = served
    for one in made:
        one.driver.checkpointer.close()


# -- the pace ----------------------------------------------------------------------------------------------------------


def test_timer_takes_a_checkpoint_each_interval(timer: Make) -> None:
    assert timer(interval="60 s").run(200) == [60, 120, 180]


def test_first_delay_lies_between_pause_and_interval(timer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda least, most: {(20, 60): 35}[least, most])
    assert timer(interval="60 s", min_pause="20 s").run(100) == [35, 95]


@pytest.mark.parametrize("by", ["a barrier", "a task", "a gate", "a savepoint"])
def test_pause_counts_from_every_checkpoint(timer: Make, by: str) -> None:
    one = timer(interval="60 s", min_pause="30 s")
    driver = one.driver

    def complete() -> None:
        if by == "a barrier":
            driver.checkpointer.checkpoint("stage 'a'", wait=True)
        elif by == "a savepoint":
            ask(driver, memory())
            driver.checkpointer.checkpoint("stage 'a'", wait=True)
            driver.checkpointer.savepoints.wait_begun()
        else:
            number = driver.asked(gated=by == "a gate")
            driver.checkpointer.checkpoint("stage 'a'", wait=True)
            if by == "a gate":
                driver.task().complete(number, finalize=True)
                driver.catch_up()  # the timer counts from when the driver has seen it

    assert one.run(100, {59: complete}) == [89]


def test_pause_counts_from_a_checkpoint_for_which_the_timer_has_waited(timer: Make) -> None:
    one = timer(interval="60 s", min_pause="30 s")
    written = threading.Event()
    one.driver.pin(Recording("counts", wait_for=written))

    def begin() -> None:
        one.driver.checkpointer.checkpoint("stage 'a'")
        threading.Timer(0.2, written.set).start()

    assert one.run(100, {60: begin}) == [90]


def test_checkpoint_of_a_person_does_not_wait_for_the_pause(timer: Make) -> None:
    one = timer(interval="60 s", min_pause="30 s")
    one.run(70, {62: one.driver.asked})
    assert [origin for _, origin in one.triggered.values()] == [PERIODIC, "task"]
    assert one.completed() == 2


def turns(one: Timer, method: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list of the moments at which the timer calls ``method`` of its checkpointer from now on."""
    moments, call = list[float](), getattr(one.driver.checkpointer, method)

    def noted(*arguments: Any, **options: Any) -> Any:
        moments.append(one.clock.now)
        return call(*arguments, **options)

    monkeypatch.setattr(one.driver.checkpointer, method, noted)
    return moments


def test_timer_asks_once_how_long_the_pause_is(timer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = timer(interval="60 s", min_pause="30 s")
    asked = turns(one, "periodic_checkpoint", monkeypatch)
    assert one.run(100, {59: lambda: one.driver.checkpointer.checkpoint("stage 'a'", wait=True)}) == [89]
    assert asked == [60, 89]


def test_checkpoint_of_a_person_that_fails_is_tried_again_after_ten_seconds(
    timer: Make, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = timer(interval="1 h")
    tries = turns(one, "checkpoint", monkeypatch)

    def ask() -> None:
        one.driver.asked()
        store.plan = lambda call: Fault.DENIED if call.key.endswith("_metadata") else Fault.NONE

    one.run(100, {10: ask, 35: lambda: setattr(store, "plan", served), 60: one.driver.asked})
    assert tries == [10, 20, 30, 40, 60]


# -- it waits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pause", "due"), [("5 s", 73), ("0 s", 68)])
def test_request_that_waited_for_a_savepoint_is_taken_after_the_rest_of_the_pause(
    timer: Make, pause: str, due: float
) -> None:
    one = timer(interval="60 s", min_pause=pause)
    driver = one.driver
    copied = threading.Event()
    held = Held("counts", wait_for=copied)

    def begin() -> None:
        ask(driver, memory())
        driver.pin(held)
        driver.checkpointer.checkpoint("stage 'a'", wait=True)
        driver.pin(Recording("counts"))

    def end() -> None:
        copied.set()
        driver.checkpointer.savepoints.wait_begun()

    periodic = one.run(100, {50: begin, 68: end})
    taken = [number for number, (_, origin) in one.triggered.items() if origin == PERIODIC]
    assert len(periodic) == 1
    assert abs(periodic[0] - due) <= 0.5
    assert driver.listed(taken[0]).status == RETAINED


class Held(Recording):
    """A snapshot whose copy waits."""

    def write(self, check: Any, place: Any = None) -> Any:
        if place is None:
            return Recording("counts").write(check)
        return super().write(check, place)


def test_timer_stands_still_while_no_query_runs(timer: Make) -> None:
    one = timer(interval="60 s")

    def run(*, active: bool) -> None:
        one.query.active = active

    plan: dict[float, Callable[[], object]] = {
        70: lambda: run(active=False),
        400: one.driver.asked,
        500: lambda: run(active=True),
    }
    assert one.run(620, plan) == [60, 500, 560, 620]
    assert one.completed() == 5, "what a task asks for is taken meanwhile"


# -- the script ----------------------------------------------------------------------------------------------------------


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def awaited(one: Timer, seconds: float = 0.2) -> threading.Thread:
    """Let the script wait for its query, in a thread. Return that when it waits."""
    query = Query(cast(Any, one.query), one.queries.waiting)
    script = in_thread(lambda: query.awaitTermination(seconds))
    wait_until(lambda: one.queries._script_waits._waits, say="the script does not wait", every=0.01)
    return script


def test_script_does_not_wait_until_a_checkpoint_is_written(timer: Make) -> None:
    """It waits for its query while the checkpoint begins, and a second time while it is written."""
    one = timer()
    written = threading.Event()
    snapshot = Recording("counts", wait_for=written)
    one.driver.pin(snapshot)
    script = awaited(one)
    taking = in_thread(lambda: one.timer._checkpoint(periodic=True))
    assert snapshot.began.wait(10)
    for _ in range(2):
        script.join(10)
        assert not script.is_alive()
        script = awaited(one)
    assert taking.is_alive()
    written.set()
    taking.join(10)
    assert one.completed() == 1


class Asked:
    """A registered object that takes its time when it is asked, or notified."""

    def __init__(self, slow: str) -> None:
        self.slow, self.asked, self.free = slow, threading.Event(), threading.Event()

    def initialize_state(self, _: object) -> None:
        """Do nothing."""

    def snapshot_state(self, _: object) -> int:
        self._take("snapshot_state")
        return 1

    def notify_checkpoint_complete(self, _: int) -> None:
        self._take("notify_checkpoint_complete")

    def _take(self, method: str) -> None:
        if method == self.slow:
            self.asked.set()
            assert self.free.wait(10)


@pytest.mark.parametrize("method", ["snapshot_state", "notify_checkpoint_complete"])
def test_script_waits_while_its_objects_are_called(timer: Make, method: str) -> None:
    one = timer()
    found = Asked(method)
    one.driver.registered.add("position", found)
    script = awaited(one)
    taking = in_thread(lambda: one.timer._checkpoint(periodic=True))
    assert found.asked.wait(10)
    script.join(0.5)
    assert script.is_alive()
    found.free.set()
    script.join(10)
    taking.join(10)
    assert not script.is_alive()
    assert one.completed() == 1


def test_objects_of_a_script_that_goes_on_are_not_asked(timer: Make) -> None:
    one = timer()
    found = Asked("snapshot_state")
    one.driver.registered.add("position", found)
    one.timer._checkpoint(periodic=True)
    assert not found.asked.is_set()
    assert one.completed() == 1


def test_script_waits_while_the_savepoint_of_a_stop_is_copied(timer: Make) -> None:
    one = timer()
    copied = threading.Event()
    held = Held("counts", wait_for=copied)
    one.driver.pin(held)
    ask(one.driver, memory(), "suspend_savepoint")
    script = awaited(one)
    ended = list[BaseException]()

    def stop() -> None:
        try:
            one.timer._checkpoint(periodic=False)
        except Left as left:
            ended.append(left)

    taking = in_thread(stop)
    assert held.began.wait(10)
    script.join(0.5)
    assert script.is_alive()
    copied.set()
    taking.join(10)
    assert len(ended) == 1


# -- a query that is not started ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upstreams", [(), ("a",)], ids=["alone", "reads the one that runs"])
@pytest.mark.parametrize("kind", ["checkpoint", "terminate_savepoint"])
def test_request_waits_a_minute_for_a_query_that_the_script_may_have_dropped(
    timer: Make, upstreams: tuple[str, ...], kind: str
) -> None:
    """Another one catches up inside ``start_query``, for hours."""
    one = timer(interval="1 h")
    one.query.caught_up = False
    one.driver.states.snapshots["b"] = saved("b", *upstreams)
    one.driver.attempt.writer.append(
        LocateQuery(uid="b", epoch=1, path="query/b/1-abc", taken_from=None, begun=-1, committed=-1)
    )
    where = {} if kind == "checkpoint" else {"folder": memory().uri}
    with one.queries._unstarted.starting():
        one.run(100, {10: lambda: one.driver.asked(kind, **where)})
    assert one.ended[1] == 60
    assert one.driver.listed(1).reason == ("" if kind == "checkpoint" else "declined")


def test_timer_that_several_threads_start_before_a_query_runs_once_and_ends(timer: Make) -> None:
    one = timer()
    one.queries._running = {}
    together, errors = threading.Barrier(20), list[Exception]()

    def start() -> None:
        together.wait(10)
        try:
            one.timer.start()
        except RuntimeError as error:
            errors.append(error)

    for starting in [in_thread(start) for _ in range(20)]:
        starting.join(10)
    one.timer.end()
    assert not errors
    assert not one.timer._thread.is_alive()
    assert one.completed() == 0


# -- a store that does not delete --------------------------------------------------------------------------------------


def denied(call: Call) -> Fault:
    return Fault.DENIED if call.kind == "delete" else Fault.NONE


@pytest.mark.parametrize("kept", [1, 2])
def test_store_that_denies_deletions_does_not_stop_the_timer(
    timer: Make, store: FaultyStore, kept: int, capsys: pytest.CaptureFixture[str]
) -> None:
    store.plan = denied
    one = timer(interval="60 s", retention=KeepLatest(kept))
    looked = one._note

    def settle() -> None:
        one.driver.settle_deletions()
        looked()

    one._note = settle  # type: ignore[method-assign]
    assert one.run(600) == [60.0 * n for n in range(1, 11)]
    said = capsys.readouterr().out
    assert "NOT PROTECTED: Old checkpoints could not be deleted. The next checkpoint tries again: denied" in said
    assert said.count("NOT PROTECTED") == 10 - kept


def test_deletion_that_hangs_keeps_the_timer_for_the_timeout_only(
    timer: Make, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    free = threading.Event()

    def hangs(call: Call) -> Fault:
        if call.kind == "delete":
            assert free.wait(60)
        return Fault.NONE

    store.plan = hangs
    one = timer(interval="60 s", timeout="200 s", retention=KeepLatest(1))
    looked = one._note

    def watch() -> None:
        one.driver.checkpointer.on_watch()
        looked()

    one._note = watch  # type: ignore[method-assign]
    assert one.run(500) == [60, 120, 180, 320.5, 380.5, 440.5]
    free.set()
    said = capsys.readouterr().out
    assert said.count("NOT PROTECTED: Old checkpoints could not be deleted") == 1
    assert "a deletion has not returned for 200 s" in said
