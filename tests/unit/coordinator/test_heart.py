"""The thread that writes heartbeats. Runs anywhere."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, Beats, Process, read_beat
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.faults import Fault, FaultyStore
from tests.support.journals import KEYS
from tests.support.waiting import wait_until

KEY = KEYS.attempt_beat(1)
SHORT = Beats(every=0.02, wait=0.3, still=0.6)


def test_heart_beats_at_once_and_until_it_is_closed() -> None:
    store = MemoryStore()
    with Heart(store, KEY, Beat(epoch=3, activity="starting"), SHORT):
        first = read_beat(store, KEY)
        assert first
        assert (first.counter, first.epoch, first.activity) == (1, 3, "starting")
        assert first.process == Process.this()
        assert first.at.endswith("Z")
        wait_until(lambda: (read_beat(store, KEY) or Beat()).counter > 3, say="it stands still", every=0.01)
    last = read_beat(store, KEY)
    time.sleep(5 * SHORT.every)
    assert read_beat(store, KEY) == last, "a closed heart stops"


def test_next_beat_holds_the_last_update() -> None:
    store = MemoryStore()
    heart = Heart(store, KEY, Beat(epoch=3), SHORT)
    heart.update(lambda beat: replace(beat, activity="stage 'clean'", fraction=0.61, reused=("a", "b")))
    assert store.objects == {}, "an update is written with the next beat"
    heart.pulse()
    found = read_beat(store, KEY)
    assert found
    assert (found.activity, found.fraction, found.reused, found.counter) == ("stage 'clean'", 0.61, ("a", "b"), 1)


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.NOT_SENT, Fault.DROPPED])
def test_heart_goes_on_after_errors_of_the_store(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    """The next beat tries again. The log has one line for each series of failures."""
    failing = {1, 2, 3, 5, 6}
    store = FaultyStore(
        MemoryStore(), lambda call: fault if call.nth in failing and call.kind == "overwrite" else Fault.NONE
    )
    with Heart(store, KEY, Beat(), SHORT):
        wait_until(lambda: store.requests["overwrite"] >= 8, say="it stands still", every=0.01)
    first, second = caplog.messages
    for line in (first, second):
        assert line.startswith(f"{KEY}: it cannot be written, so others may take this process for dead: ")
    assert read_beat(store, KEY)


def test_heart_goes_on_after_an_error_that_nobody_expected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    overwrite, errors = store.overwrite, [RuntimeError("of a library")]

    def failing_once(key: str, body: bytes) -> None:
        if errors and b'"counter":2' in body:
            raise errors.pop()
        overwrite(key, body)

    monkeypatch.setattr(store, "overwrite", failing_once)
    with Heart(store, KEY, Beat(), SHORT):
        wait_until(lambda: (read_beat(store, KEY) or Beat()).counter > 2, say="it stands still", every=0.01)
    assert "of a library" in capsys.readouterr().err
