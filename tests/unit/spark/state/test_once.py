"""A long step that stores what the script has made: taken once, and to its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_checkpoint_provider.errors import StoreUnavailable
from airflow_checkpoint_provider.spark.state import snapshot
from airflow_checkpoint_provider.spark.state.snapshot import AttemptEnds, NotWanted, Once


class Step:
    """A step that is held until it is released, and counts its calls. ``errors``: with which its first calls fail."""

    def __init__(self, *errors: Exception) -> None:
        self.calls, self.errors = 0, list(errors)
        self.began, self.released = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.calls += 1
        self.began.set()
        assert self.released.wait(60)
        if self.errors:
            raise self.errors.pop(0)
        return 7


def wanted() -> None:
    """Ask nothing."""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    monkeypatch.setattr(snapshot, "CHECK_EVERY", 0.01)
    with ThreadPoolExecutor(4) as threads:
        yield threads


def test_step_is_taken_once_for_all_that_ask(threads: ThreadPoolExecutor) -> None:
    step = Step()
    once = Once(step)
    asked = [threads.submit(once.get, wanted) for _ in range(4)]
    step.released.set()
    assert [one.result(60) for one in asked] == [7] * 4
    assert step.calls == 1


def test_step_that_failed_is_taken_again() -> None:
    step = Step(StoreUnavailable("away"))
    step.released.set()
    once = Once(step)
    with pytest.raises(StoreUnavailable):
        once.get(wanted)
    assert once.get(wanted) == 7


def test_checkpoint_that_is_not_wanted_does_not_wait(threads: ThreadPoolExecutor) -> None:
    step = Step()
    once = Once(step)

    def not_wanted() -> None:
        raise NotWanted

    first = threads.submit(once.get, wanted)
    assert step.began.wait(60)
    with pytest.raises(NotWanted):
        once.get(not_wanted)
    step.released.set()
    assert first.result(60) == 7


def test_attempt_that_ends_waits_for_what_was_made(threads: ThreadPoolExecutor) -> None:
    step = Step()
    once, asked = Once(step), threading.Event()

    def ends() -> None:
        asked.set()
        raise AttemptEnds

    first = threads.submit(once.get, wanted)
    assert step.began.wait(60)
    second = threads.submit(once.get, ends)
    assert asked.wait(60)
    step.released.set()
    assert (first.result(60), second.result(60), step.calls) == (7, 7, 1)
