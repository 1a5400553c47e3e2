"""Going back on purpose: one entry, once, and who counts in what it begins (docs/protocol.md, P3, P9, P11). Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Point, Request, Token
from tests.support.histories import Given, History, in_turn, launch, refusal, said, start

ALL = CheckpointConfig(retention=KeepAll()).to_json()


def restore(number: int | None, generation: int = 0) -> c.Restore:
    token = Token(dag="upgrade", run="monday", task="restore", generation=generation)
    base = Point(id=number) if number else None
    return c.Restore(token=token, base=base, by="upgrade.restore", reason="the new version is wrong")


def two(h: History) -> None:
    """An attempt that has completed two, which are kept."""
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
def test_what_may_be_restored(given: Given, asked: c.Restore, answer: str) -> None:
    history = History()
    given(history)
    assert said(history.ask(asked)) == answer


def test_whatever_runs_is_over_and_the_next_attempt_starts_there() -> None:
    """B35: no launch is current, so the old one's driver cannot start again either."""
    history = History()
    restored(history)
    assert history.state.over(1)
    assert history.state.current_launch() is None
    assert said(history.ask(start(driver="its second driver"))) == "Fenced"
    assert said(history.ask(c.Trigger(request=Request(token="late"), epoch=1))) == "Fenced"
    assert said(history.ask(launch(try_number=2))) == "launch 2 from chk-1"


def test_the_retries_after_it_neither_go_back_again_nor_see_what_lies_beyond() -> None:
    history = History()
    restored(history)
    history.started(try_number=2, checkpointing=ALL)
    history.completed()
    history.ended("failed")
    assert said(history.ask(launch(try_number=3))) == "launch 3 from chk-3"


def test_a_finished_run_whose_branch_was_left_goes_on_from_the_restore_point() -> None:
    history = History()
    two(history)
    history.ended()
    history.do(restore(1))
    assert said(history.ask(launch(try_number=2, generation=1))) == "launch 2 from chk-1"


def test_a_suspension_is_lifted() -> None:
    history = History()
    two(history)
    history.suspended()
    history.do(restore(2))
    assert history.state.suspended is None
    assert said(history.ask(launch(try_number=2))) == "launch 2 from chk-2"


def three_days(h: History) -> None:
    """One checkpoint each: chk-1, chk-2, chk-3."""
    for day in (1, 2, 3):
        h.started(f"day-{day}", checkpointing=ALL)
        h.completed()
        h.ended()


@pytest.mark.parametrize(
    ("bases", "day", "answer"),
    [
        ((2,), 1, "OlderRun"),
        ((2,), 3, "launch 4 from chk-2"),
        ((1,), 2, "launch 4 from chk-1"),
        ((3,), 2, "OlderRun"),
        ((None,), 1, "launch 4 from nothing"),
        ((2, 2), 1, "OlderRun"),
        ((3, 2), 1, "OlderRun"),
        ((2, 1), 2, "launch 4 from chk-1"),
        ((1, 3), 2, "OlderRun"),
        ((None, 3), 2, "OlderRun"),
        ((3, 3, 2), 3, "launch 4 from chk-2"),
    ],
)
def test_only_runs_inside_the_base_are_counted(bases: tuple[int | None, ...], day: int, answer: str) -> None:
    """A day that the base holds would be counted twice; one that lies beyond it was taken back and may run again. However
    often somebody goes back."""
    history = History()
    three_days(history)
    for generation, base in enumerate(bases):
        history.do(restore(base, generation))
    assert said(history.ask(launch(f"day-{day}", try_number=2, generation=1))) == answer


def test_what_ran_again_after_a_step_back_is_inside_too() -> None:
    history = History()
    three_days(history)
    history.do(restore(2))
    history.started("day-3", try_number=2, generation=1, checkpointing=ALL)
    history.completed()
    history.ended()
    history.do(restore(2, 1))
    assert said(history.ask(launch("day-1", try_number=2, generation=1))) == "OlderRun"
    history.do(restore(4, 2))
    assert said(history.ask(launch("day-2", try_number=2, generation=1))) == "OlderRun"
    assert said(history.ask(launch("day-4"))) == "launch 5 from chk-4"


def test_an_error_says_that_nothing_was_changed() -> None:
    history = History()
    deleted(history)
    decision = history.ask(restore(1))
    assert isinstance(decision, c.Refusal)
    assert isinstance(decision.error, errors.StateRequired)
    assert "chk-1 was deleted; nothing was changed" in decision.error.message


def test_where_there_is_no_history_there_is_nothing_to_go_back_in() -> None:
    assert "there is no history" in refusal(History().ask(restore(1)), errors.StateRequired).message
