"""Liveness of a driver: at once on the same host, by two moves of its counter elsewhere (docs/inside/attempts.md). Runs on Linux."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import (
    VARIABLE,
    Beat,
    Beats,
    Liveness,
    Process,
    RefusedStart,
    beat_keys,
    read_beat,
)
from airflow_checkpoint_provider.errors import InvalidConfig, StoreDenied, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore
from airflow_checkpoint_provider.storage.base import Store
from tests.support.beats import CLOCKS_OFF, beating, put_beat
from tests.support.faults import Fault, FaultyStore
from tests.support.histories import History
from tests.support.journals import KEYS
from tests.support.waiting import wait_until

KEY = KEYS.attempt_beat(1)
SHORT = Beats(every=0.02, wait=0.3, still=0.6)
FOREIGN = Process(host="elsewhere", boot_id="another boot", pid_namespace="pid:[1]", pid=os.getpid(), start_ticks="1")
BEATER = """
import sys, time
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, Beats
from airflow_checkpoint_provider.storage import open_store
with Heart(open_store(sys.argv[1]), sys.argv[2], Beat(epoch=1), Beats(every=0.02)):
    time.sleep(60)
"""


def beat(store: MemoryStore, **fields: Any) -> None:
    store.overwrite(KEY, canonical(Beat(**{"epoch": 1, "counter": 1, **fields}).to_json()))


def looked(store: Store, *keys: str, beats: Beats = SHORT) -> tuple[bool, bool]:
    """Return whether a driver is alive, and whether that took a wait."""
    waited = threading.Event()
    return Liveness(store, beats).wait(keys or (KEY,), waited.set), waited.is_set()


def test_default_beats_are_10_30_and_60_seconds() -> None:
    """A beat every 10 s, alive after two moves within 30 s, dead after 60 s without one."""
    assert Beats() == Beats(every=10.0, wait=30.0, still=60.0)


@pytest.mark.parametrize(
    ("value", "beats"),
    [
        (None, Beats()),
        ("", Beats()),
        ("0.5", Beats(0.5, 1.5, 3.0)),
        ("20", Beats(20, 60, 120)),
        ("20 s", Beats(20, 60, 120)),
    ],
)
def test_configured_beats_keep_the_proportion(monkeypatch: pytest.MonkeyPatch, value: str | None, beats: Beats) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert Beats.configured() == beats


@pytest.mark.parametrize("value", ["0", "-1", "1e-9", "0.009", "nan", "inf", "1e300", "soon", "10 s every", "0 s"])
def test_interval_that_would_declare_living_drivers_dead_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Its driver would beat without a pause, and whoever looks would find every driver of another host dead, or none ever."""
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(InvalidConfig, match=f"^{VARIABLE}="):
        Beats.configured()


# -- a process of this host ----------------------------------------------------------------------------------------------


@contextmanager
def child(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=10)


def stat(pid: int) -> list[str]:
    """State, parent, … start time."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def process_of(pid: int) -> Process:
    return replace(Process.this(), pid=pid, start_ticks=stat(pid)[19])


def state_of(pid: int) -> str:
    return stat(pid)[0]


def test_driver_on_this_host_is_judged_at_once(tmp_path: Path) -> None:
    """A real process beats and is killed by SIGKILL; neither needs a wait."""
    store = LocalStore(tmp_path)
    with child(sys.executable, "-c", BEATER, str(tmp_path), KEY) as driver:
        wait_until(lambda: read_beat(store, KEY), say="no beat")
        assert looked(store) == (True, False)
        driver.send_signal(signal.SIGKILL)
        driver.wait(timeout=10)
        assert looked(store) == (False, False)


def test_zombie_process_is_dead() -> None:
    """A zombie waits for its parent and writes nothing."""
    store = MemoryStore()
    with child("sleep", "60") as driver:
        beat(store, process=process_of(driver.pid))
        assert looked(store) == (True, False)
        os.kill(driver.pid, signal.SIGKILL)
        wait_until(lambda: state_of(driver.pid) == "Z", say=lambda: state_of(driver.pid), every=0.01)
        assert looked(store) == (False, False)


def test_stopped_process_is_alive() -> None:
    """A stopped process may go on; the journal refuses its writes if it was replaced."""
    store = MemoryStore()
    with child("sleep", "60") as driver:
        beat(store, process=process_of(driver.pid))
        os.kill(driver.pid, signal.SIGSTOP)
        wait_until(lambda: state_of(driver.pid) == "T", say=lambda: state_of(driver.pid), every=0.01)
        assert looked(store) == (True, False)


def test_later_process_with_the_same_pid_is_another() -> None:
    this = Process.this()
    assert this.lives() is True
    assert replace(this, start_ticks=str(int(this.start_ticks) - 1)).lives() is False


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError], ids=["hidepid=1", "hidepid=2"])
def test_process_that_the_host_hides_from_this_user_is_unknown(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver of another user is taken for dead neither at once nor for good: its counter decides."""
    with child("sleep", "60") as driver:
        hidden = process_of(driver.pid)
        read_text = Path.read_text

        def hides(path: Path, *arguments: Any, **options: Any) -> str:
            if path.name == "stat":
                raise error(str(path))
            return read_text(path, *arguments, **options)

        monkeypatch.setattr(Path, "read_text", hides)
        assert hidden.lives() is None
        assert replace(hidden, pid=2**22 + 1).lives() is False, "no process can have this number"
    assert hidden.lives() is False, "it has ended"


def test_process_that_did_not_know_its_start_is_unknown() -> None:
    assert replace(Process.this(), start_ticks="").lives() is None


@pytest.mark.parametrize(
    "elsewhere",
    [
        FOREIGN,
        replace(Process.this(), boot_id="another boot"),
        replace(Process.this(), pid_namespace="pid:[1]"),
        replace(Process.this(), boot_id=""),
        Process(),
    ],
    ids=["another host", "this host before it was booted", "another container", "a host that cannot say", "nobody"],
)
def test_process_elsewhere_is_unknown(elsewhere: Process) -> None:
    """Host names do not identify a host: two containers may share one, and a host may change its name."""
    assert elsewhere.lives() is None


# -- a process elsewhere -------------------------------------------------------------------------------------------------


@contextmanager
def counting(store: MemoryStore, change: Callable[[int], dict[str, Any]]) -> Iterator[None]:
    """Run a thread that beats as a driver elsewhere, with the fields that ``change`` returns for each counter."""
    stop = threading.Event()

    def run() -> None:
        number = 1
        while not stop.wait(0.01):
            number += 1
            beat(store, process=FOREIGN, **change(number))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=10)


def test_two_moves_of_the_counter_are_alive() -> None:
    store = MemoryStore()
    beat(store, process=FOREIGN)
    with counting(store, lambda number: {"counter": number}):
        assert Liveness(store, Beats(every=0.02, wait=30.0)).wait([KEY])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda number: {"counter": 1}, id="a counter that stands still"),
        pytest.param(lambda number: {"counter": min(number, 2)}, id="one move: a beat that was on its way"),
        pytest.param(
            lambda number: {"counter": 1, "at": str(number), "activity": str(number)}, id="a clock that moves alone"
        ),
    ],
)
def test_fewer_than_two_moves_are_dead(change: Callable[[int], dict[str, Any]]) -> None:
    store = MemoryStore()
    beat(store, process=FOREIGN)
    with counting(store, change):
        assert looked(store) == (False, True)


def test_wait_lasts_the_whole_look() -> None:
    store = MemoryStore()
    beat(store, process=FOREIGN)
    began = time.monotonic()
    assert looked(store) == (False, True)
    assert SHORT.wait <= time.monotonic() - began < 10


def test_one_moving_heartbeat_of_several_is_alive() -> None:
    """The heartbeat of the launch stands still since its task died; that of the driver moves."""
    store = MemoryStore()
    store.overwrite(KEYS.launch_beat(1), canonical(Beat(counter=9, launch=1, process=FOREIGN).to_json()))
    beat(store, process=FOREIGN)
    with counting(store, lambda number: {"counter": number}):
        assert Liveness(store, Beats(every=0.02, wait=30.0)).wait([KEYS.launch_beat(1), KEY])


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"{",
        canonical({"v": 2, "counter": 1}),
        canonical({"v": 1, "counter": "one"}),
        canonical(
            Beat(counter=1, process=FOREIGN, refusal=RefusedStart(code="CKP131", text="another is alive")).to_json()
        ),
    ],
    ids=["absent", "empty", "torn", "of a newer version", "of other types", "of a driver that was refused"],
)
def test_unreadable_heartbeat_is_ignored(body: bytes | None) -> None:
    """Heartbeats are hints, so an unreadable one is no error."""
    store = MemoryStore()
    key = KEYS.launch_beat(1)
    if body is not None:
        store.overwrite(key, body)
    assert looked(store, key) == (False, False)


def test_attempt_without_a_heartbeat_is_waited_for() -> None:
    """A driver beats right after its entry; an observer between the two must not replace it."""
    store = MemoryStore()
    waited = threading.Event()

    def begin() -> None:
        waited.set()
        Heart(store, KEY, Beat(epoch=1), SHORT).pulse()

    assert Liveness(store, Beats(every=0.02, wait=30.0)).wait((KEY,), begin)
    assert waited.is_set()


def test_attempt_that_never_beat_is_dead() -> None:
    assert looked(MemoryStore()) == (False, True)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.DENIED, StoreDenied),
        (Fault.NOT_SENT, StoreUnavailable),
        (Fault.MISCONFIGURED, StoreMisconfigured),  # any odd answer of a proxy
    ],
)
def test_error_of_the_store_is_raised_and_not_taken_for_dead(fault: Fault, error: type[Exception]) -> None:
    """Otherwise a healthy driver would be replaced."""
    with pytest.raises(error):
        looked(FaultyStore(MemoryStore(), lambda call: fault))


# -- an observer over time -----------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The observer's monotonic clock."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("airflow_checkpoint_provider.coordinator.liveness.time.monotonic", lambda: clock.now)
    return clock


def look_at(observer: Liveness, store: Store, counter: int) -> bool | None:
    put_beat(store, KEY, counter)
    observer.observe([KEY])
    return observer.alive([KEY])


def test_first_look_at_a_driver_elsewhere_is_undecided(clock: SimpleNamespace) -> None:
    store = MemoryStore()
    assert look_at(Liveness(store), store, 1) is None


def test_counter_that_moved_between_two_looks_is_alive(clock: SimpleNamespace) -> None:
    store = MemoryStore()
    observer = Liveness(store)
    assert look_at(observer, store, 5) is None
    clock.now += 20
    assert look_at(observer, store, 7) is True


def test_driver_is_dead_after_a_minute_without_a_move(clock: SimpleNamespace) -> None:
    store = MemoryStore()
    observer = Liveness(store)
    look_at(observer, store, 5)
    look_at(observer, store, 8)
    clock.now += 59
    assert look_at(observer, store, 8) is True
    assert observer.silent_for([KEY]) == 59
    clock.now += 1
    assert look_at(observer, store, 8) is False
    clock.now += 600
    assert look_at(observer, store, 10) is True, "the driver was asleep"


@pytest.mark.parametrize(
    ("fault", "error"), [(Fault.NOT_SENT, StoreUnavailable), (Fault.MISCONFIGURED, StoreMisconfigured)]
)
def test_failed_look_does_not_count_as_silence(clock: SimpleNamespace, fault: Fault, error: type[Exception]) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    observer = Liveness(store)
    look_at(observer, inner, 5)
    observer.observe([KEY])
    clock.now += 59
    store.plan = lambda call: fault
    with pytest.raises(error):
        observer.observe([KEY])
    clock.now += 59
    store.plan = lambda call: Fault.NONE
    observer.observe([KEY])
    assert observer.alive([KEY]) is None
    assert observer.silent_for([KEY]) == 59


def test_process_of_this_host_is_never_silent(clock: SimpleNamespace) -> None:
    store = MemoryStore()
    beat(store, process=Process.this())
    observer = Liveness(store)
    observer.observe([KEY])
    clock.now += 600
    observer.observe([KEY])
    assert (observer.alive([KEY]), observer.silent_for([KEY])) == (True, 0.0)
    beat(store, process=replace(Process.this(), start_ticks="another one's"))
    observer.observe([KEY])
    assert (observer.alive([KEY]), observer.silent_for([KEY])) == (False, math.inf)


def test_look_returns_the_first_beat() -> None:
    store = MemoryStore()
    beat(store, counter=7)
    found = Liveness(store).observe([KEYS.driver_beat(1), KEY])
    assert found is not None
    assert found.counter == 7
    assert Liveness(store).observe([KEYS.driver_beat(1)]) is None


def test_driver_without_a_beat_is_silent_since_the_first_look(clock: SimpleNamespace) -> None:
    observer = Liveness(MemoryStore())
    for key in (KEY, KEYS.driver_beat(1)):
        observer.observe([key])
    clock.now += 5
    assert observer.silent_for([KEY, KEYS.driver_beat(1)]) == observer.silent_for([KEYS.driver_beat(1)]) == 5


def test_several_drivers_are_watched_at_the_same_time() -> None:
    store = MemoryStore()
    silent = [(KEYS.attempt_beat(number),) for number in range(2, 12)]
    began = time.monotonic()
    with beating(store, KEY):
        found = Liveness(store, SHORT).wait_for_each([(KEY,), *silent])
    assert {keys for keys, alive in found.items() if alive} == {(KEY,)}
    assert len(found) == 11
    assert time.monotonic() - began < 10 * SHORT.wait


@CLOCKS_OFF
def test_clock_of_another_host_does_not_count(off: timedelta) -> None:
    store = MemoryStore()
    with beating(store, KEY, off):
        assert Liveness(store, Beats(every=0.02, wait=30.0)).wait([KEY])
    assert looked(store) == (False, True)


# -- whose beats ---------------------------------------------------------------------------------------------------------


def test_beats_of_returns_the_heartbeats_of_the_current_launch() -> None:
    history = History()
    assert list(beat_keys(KEYS, history.state)) == []
    history.launched()
    assert list(beat_keys(KEYS, history.state)) == [KEYS.driver_beat(1), KEYS.launch_beat(1)]
    history.started(try_number=2)
    assert list(beat_keys(KEYS, history.state)) == [KEYS.attempt_beat(1)]
    history.do(c.EndAttempt(epoch=1, outcome="failed"))
    assert list(beat_keys(KEYS, history.state)) == []
