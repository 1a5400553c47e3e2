"""Restore: one entry, once, and which runs count in its branch (docs/inside/properties.md, P3, P9, P11). Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from tests.support.histories import Given, History, described, in_turn, launch, refusal, start

ALL = CheckpointConfig(retention=KeepAll()).to_json()


def restore(number: int | None, generation: int = 0) -> c.Restore:
    token = Token(dag="upgrade", run="monday", task="restore", generation=generation)
    base = Point(id=number) if number else None
    return c.Restore(token=token, base=base, by="upgrade.restore", reason="the new version is wrong")


def two(h: History) -> None:
    """Start an attempt and complete two checkpoints, which are kept."""
    h.started(checkpointing=ALL)
    h.completed()
    h.completed()


def deleted(h: History) -> None:
    h.started()
    for _ in range(3):
        h.completed()
    h.condemned(1)


def restored(h: History) -> None:
    two(h)
    h.do(restore(1))


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(two, restore(1), "branch 1 from chk-1", id="an older one"),
        pytest.param(two, restore(2), "branch 1 from chk-2", id="the newest: only what runs is fenced"),
        pytest.param(two, restore(None), "branch 1 from nothing", id="nothing"),
        pytest.param(in_turn(two, lambda h: h.triggered()), restore(1), "branch 1 from chk-1, abort chk-3", id="one is pending"),
        pytest.param(deleted, restore(1), "StateRequired", id="one that was deleted"),
        pytest.param(two, restore(9), "StateRequired", id="one that never was"),
        pytest.param(lambda h: None, restore(None), "StateRequired", id="no history"),
        pytest.param(restored, restore(1), "done 2", id="by its retry"),
        pytest.param(restored, restore(1, generation=1), "branch 2 from chk-1", id="by its clear"),
        pytest.param(in_turn(restored, lambda h: h.do(restore(2, 1))), restore(1), "done 2", id="by a retry that slept while another restored (B34)"),
        pytest.param(in_turn(restored, lambda h: h.launched(try_number=2)), restore(1), "done 2", id="by a retry, the next attempt has begun"),
    ],
)  # fmt: skip
def test_restore_by_situation(given: Given, asked: c.Restore, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(asked)) == answer


def test_restore_fences_the_attempt_and_the_next_launch_starts_there() -> None:
    """B35: no launch is current, so the driver of the old launch cannot start again either."""
    history = History()
    restored(history)
    assert history.state.over(1)
    assert history.state.current_launch() is None
    assert described(history.ask(start(driver="its second driver"))) == "Fenced"
    assert described(history.ask(c.Trigger(request=Request(token="late"), epoch=1))) == "Fenced"
    assert described(history.ask(launch(try_number=2))) == "launch 2 from chk-1"


def test_retry_after_a_restore_starts_from_its_newest_checkpoint() -> None:
    history = History()
    restored(history)
    history.started(try_number=2, checkpointing=ALL)
    history.completed()
    history.ended("failed")
    assert described(history.ask(launch(try_number=3))) == "launch 3 from chk-3"


def test_cleared_run_goes_on_from_the_point_of_a_restore() -> None:
    history = History()
    two(history)
    history.ended()
    history.do(restore(1))
    assert described(history.ask(launch(try_number=2, generation=1))) == "launch 2 from chk-1"


def test_restore_ends_a_suspension() -> None:
    history = History()
    two(history)
    history.suspended()
    history.do(restore(2))
    assert history.state.suspended is None
    assert described(history.ask(launch(try_number=2))) == "launch 2 from chk-2"


def three_days(h: History) -> None:
    """Finish three runs with one checkpoint each: chk-1, chk-2, chk-3."""
    for day in (1, 2, 3):
        h.started(f"day-{day}", checkpointing=ALL)
        h.completed()
        h.ended()


@pytest.mark.parametrize(
    ("bases", "day", "answer"),
    [
        ((2,), 1, "RunIsOlder"),
        ((2,), 3, "launch 4 from chk-2"),
        ((1,), 2, "launch 4 from chk-1"),
        ((3,), 2, "RunIsOlder"),
        ((None,), 1, "launch 4 from nothing"),
        ((2, 2), 1, "RunIsOlder"),
        ((3, 2), 1, "RunIsOlder"),
        ((2, 1), 2, "launch 4 from chk-1"),
        ((1, 3), 2, "RunIsOlder"),
        ((None, 3), 2, "RunIsOlder"),
        ((3, 3, 2), 3, "launch 4 from chk-2"),
    ],
)
def test_run_inside_the_base_is_refused_and_a_later_one_may_run(
    bases: tuple[int | None, ...], day: int, answer: str
) -> None:
    """A day inside the base would be counted twice; a later day was taken back and may run again, after any number of
    restores."""
    history = History()
    three_days(history)
    for generation, base in enumerate(bases):
        history.do(restore(base, generation))
    assert described(history.ask(launch(f"day-{day}", try_number=2, generation=1))) == answer


def test_run_repeated_after_a_restore_is_inside_the_base() -> None:
    history = History()
    three_days(history)
    history.do(restore(2))
    history.started("day-3", try_number=2, generation=1, checkpointing=ALL)
    history.completed()
    history.ended()
    history.do(restore(2, 1))
    assert described(history.ask(launch("day-1", try_number=2, generation=1))) == "RunIsOlder"
    history.do(restore(4, 2))
    assert described(history.ask(launch("day-2", try_number=2, generation=1))) == "RunIsOlder"
    assert described(history.ask(launch("day-4"))) == "launch 5 from chk-4"


def test_refused_restore_says_that_nothing_was_changed() -> None:
    history = History()
    deleted(history)
    decision = history.ask(restore(1))
    assert isinstance(decision, c.Refusal)
    assert isinstance(decision.error, errors.StateRequired)
    assert "chk-1 was deleted; nothing was changed" in decision.error.message


def test_restore_without_a_history_is_refused() -> None:
    assert "there is no history" in refusal(History().ask(restore(1)), errors.StateRequired).message
