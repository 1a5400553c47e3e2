"""Objects whose state is finished beside the script: its three parts, and what they hold is released. No Spark session."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.spark import SnapshotContext
from tests.support.objects import Own, Refusing
from tests.support.waiting import wait_until
from tests.unit.spark.driver import Driver


class Uploading(Own):
    """An object whose state is made in a thread. ``goes_on``: when it may end."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error, self.goes_on = error, threading.Event()
        self.goes_on.set()
        self.holds: list[object] = []

    def snapshot_state(self, ctx: SnapshotContext) -> Any:
        self.holds.append(object())  # no JSON
        return self.holds[-1]

    def finish_snapshot(self, ctx: SnapshotContext, prepared: object) -> Any:
        assert self.goes_on.wait(60)
        self.calls.append(("finish", ctx.uid, ctx.barrier, threading.current_thread() is threading.main_thread()))
        if self.error:
            raise self.error
        return {"uploads": len(self.holds)}

    def release_snapshot(self, prepared: object) -> None:
        self.calls.append(("release", self.holds.index(prepared)))


def saved(running: Driver) -> Any:
    """Return the state of the object in the newest checkpoint."""
    coordinator = running.task()
    return coordinator.read_seal(coordinator.state.retained[-1]).states["own"].value


def released(own: Uploading) -> list[Any]:
    return [call for call in own.calls if call[0] == "release"]


def test_state_is_finished_in_a_thread_and_released(running: Driver) -> None:
    own = Uploading()
    running.registered.add("own", own)
    running.pin()
    assert running.checkpointer.checkpoint("here", wait=True)
    assert saved(running) == {"uploads": 1}
    assert own.calls[0] == ("finish", "own", "here", False)
    wait_until(lambda: released(own) == [("release", 0)], say="not released")
    assert running.checkpointer.checkpoint("there", wait=True)
    assert saved(running) == {"uploads": 2}
    wait_until(lambda: released(own) == [("release", 0), ("release", 1)], say="not released")


def test_script_goes_on_while_the_state_is_finished(running: Driver) -> None:
    own = Uploading()
    own.goes_on.clear()
    running.registered.add("own", own)
    running.pin()
    running.checkpointer.checkpoint("here")
    assert not running.task().state.retained
    own.goes_on.set()
    running.checkpointer.wait()
    assert saved(running) == {"uploads": 1}


def test_error_declines_the_checkpoint_and_releases_what_is_held(running: Driver) -> None:
    own = Uploading(ValueError("the upload broke"))
    running.registered.add("own", own)
    running.pin()
    assert not running.checkpointer.checkpoint("here", wait=True)
    listed = running.task().state.checkpoints[-1]
    assert listed.reason == "declined"
    assert listed.abort_cause
    assert "'own': finish_snapshot: ValueError: the upload broke" in listed.abort_cause.details
    assert len([call for call in own.calls if call[0] == "finish"]) == 1, "a barrier asks it once"
    wait_until(lambda: released(own) == [("release", 0)], say="not released")
    own.error = None
    assert running.checkpointer.checkpoint("there", wait=True)


def test_what_is_held_is_released_if_a_later_object_declines(running: Driver) -> None:
    own = Uploading()
    running.registered.add("own", own)
    running.registered.add("other", Refusing())
    running.pin()
    with pytest.raises(Declined, match="not now"):
        running.checkpointer.checkpoint("here", wait=True)
    assert own.calls == [("release", 0)]
