"""Condemn and forget: which checkpoints and file sets are held or may be deleted (docs/inside/properties.md; P5, P9, P12). Runs anywhere."""

from __future__ import annotations

from datetime import datetime

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, KeepWithin, Retention
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.deletion import held, policy_of
from airflow_checkpoint_provider.protocol.events import Point
from tests.support.histories import Given, History, at, clear, described, file_set, in_turn, refusal, start


def keeping(retention: Retention, checkpoints: int) -> Given:
    """Return a step: start an attempt under a policy and complete checkpoints."""

    def given(h: History) -> None:
        h.started(checkpointing=CheckpointConfig(retention=retention).to_json())
        for _ in range(checkpoints):
            h.completed()

    return given


three = keeping(KeepLatest(1), 3)


def condemned(h: History) -> None:
    three(h)
    h.condemned(1, 2)


def forgotten(h: History) -> None:
    condemned(h)
    h.do(c.Forget(ids=(1, 2)))


def restored(h: History) -> None:
    """Start attempt 2 from chk-3, without a checkpoint of its own."""
    three(h)
    h.ended("failed")
    h.started(try_number=2, checkpointing=CheckpointConfig(retention=KeepLatest(1)).to_json())


def condemn(*ids: int, minute: float = 1) -> c.Condemn:
    return c.Condemn(ids=ids, now=at(minute))


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(three, condemn(1, 2), "condemn 1 2", id="what the policy does not keep"),
        pytest.param(three, condemn(3), "Held", id="what it keeps"),
        pytest.param(three, condemn(2, 3), "Held", id="nothing of it, if one is kept"),
        pytest.param(condemned, condemn(1, 2), "done 2", id="already"),
        pytest.param(forgotten, condemn(1), "done 1", id="already, and forgotten"),
        pytest.param(condemned, condemn(1, 2, 3), "Held", id="already in part, the rest is kept"),
        pytest.param(in_turn(three, lambda h: h.condemned(1)), condemn(1, 2), "condemn 2", id="already in part"),
        pytest.param(three, condemn(9), "done 9", id="never listed"),
        pytest.param(three, condemn(), "done 0", id="none"),
        pytest.param(three, condemn(1, 9), "condemn 1", id="beside an id that was never listed"),
        pytest.param(in_turn(three, lambda h: h.triggered()), condemn(4), "Held", id="pending"),
        pytest.param(in_turn(three, lambda h: h.do(c.Abort(id=h.triggered(), reason="expired"))), condemn(4), "done 4", id="aborted"),
        pytest.param(condemned, c.Forget(ids=(1, 2)), "forget 1 2", id="forget: what was condemned"),
        pytest.param(forgotten, c.Forget(ids=(1, 2)), "done 2", id="forget: already"),
        pytest.param(three, c.Forget(ids=(1,)), "Held", id="forget: not condemned"),
        pytest.param(condemned, c.Forget(ids=(2, 3)), "Held", id="forget: nothing of it, if one was not condemned"),
        pytest.param(in_turn(condemned, lambda h: h.do(c.Forget(ids=(1,)))), c.Forget(ids=(1, 2)), "forget 2", id="forget: in part"),
        pytest.param(three, c.Forget(ids=(9,)), "done 9", id="forget: never listed"),
        pytest.param(three, c.Forget(ids=()), "done 0", id="forget: none"),
        pytest.param(condemned, c.Forget(ids=(1, 9)), "forget 1", id="forget: beside an id that was never listed"),
        pytest.param(in_turn(three, lambda h: h.do(c.Abort(id=h.triggered(), reason="expired"))), c.Forget(ids=(4,)), "done 4",
                     id="forget: aborted"),
    ],
)  # fmt: skip
def test_condemn_and_forget_by_situation(given: Given, asked: c.Command, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(asked)) == answer


def test_refusal_names_the_held_checkpoints() -> None:
    history = History()
    three(history)
    assert refusal(history.ask(condemn(1, 3)), errors.Held).about["ids"] == [3]


def branched(h: History) -> None:
    """chk-1 to chk-3 on branch 0; day-2 began on a branch of its own from chk-1 and has completed nothing."""
    keeping(KeepLatest(3), 3)(h)
    h.ended()
    h.started(
        "day-2", restore="chk-1", base=Point(id=1), checkpointing=CheckpointConfig(retention=KeepLatest(1)).to_json()
    )


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param(three, {3}, id="by policy"),
        pytest.param(keeping(KeepAll(), 3), {1, 2, 3}, id="by policy: all"),
        pytest.param(in_turn(three, lambda h: h.triggered()), {3, 4}, id="pending"),
        pytest.param(restored, {3}, id="the newest of the branch, restoring"),
        pytest.param(in_turn(restored, lambda h: h.completed(), lambda h: h.completed()), {5}, id="no longer restoring"),
        pytest.param(branched, {1, 3}, id="the base of a branch without a checkpoint of its own, restoring, where the run started"),
        pytest.param(in_turn(branched, lambda h: h.completed(), lambda h: h.completed()), {1, 5},
                     id="where the newest run started: a clear goes back there"),
        pytest.param(in_turn(branched, lambda h: h.ended("failed"), lambda h: h.started("day-3")), {1, 2, 3},
                     id="the base of the branch, while a run that failed left nothing"),
        pytest.param(in_turn(restored, lambda h: h.completed(), lambda h: h.ended(), lambda h: h.started("day-2")), {3, 4},
                     id="of a job scope whose run finished: the newest stays, it is where the next run starts"),
    ],
)  # fmt: skip
def test_checkpoint_is_held_by_situation(given: Given, kept: set[int]) -> None:
    """B15: a checkpoint is held while something restores from it, starts from it, or could only go back to it."""
    history = History()
    given(history)
    assert held(history.state, datetime.fromisoformat(at(history.state.n))) == kept


def test_waiting_launch_holds_its_restore_point() -> None:
    """P9: restoring begins with the launch that chose the point."""
    history = History()
    three(history)
    history.launched(try_number=2)
    assert history.state.restoring() == {3}
    history.do(start(try_number=2))
    assert history.state.restoring() == {3}
    history.completed()
    assert history.state.restoring() == frozenset()


@pytest.mark.parametrize(
    ("retention", "minute", "kept"),
    [
        pytest.param(KeepLatest(2), 9, set(), id="KeepLatest: nothing after the end"),
        pytest.param(KeepAll(), 9e6, {1, 2, 3}, id="KeepAll: everything"),
        pytest.param(KeepWithin(minutes=10), 14, {2, 3}, id="KeepWithin: by age"),
        pytest.param(KeepLatest(3) | KeepWithin(minutes=10), 14, {2, 3}, id="of a union only the age part"),
    ],
)
def test_finished_run_holds_by_age_only(retention: Retention, minute: float, kept: set[int]) -> None:
    """chk-1 to chk-3 were completed in minutes 3, 5 and 7."""
    history = History("day-1")
    keeping(retention, 3)(history)
    assert [checkpoint.completed_at for checkpoint in history.state.retained] == [at(3), at(5), at(7)]
    history.ended()
    assert held(history.state, datetime.fromisoformat(at(minute))) == kept


def test_failed_run_holds_its_newest_checkpoint() -> None:
    history = History("day-1")
    three(history)
    history.ended("failed")
    assert 3 in held(history.state, datetime.fromisoformat(at(9)))


def test_cleared_run_holds_its_checkpoints_again() -> None:
    """The task is cleared between the end of the run and the deletion of its state."""
    history = History("day-1")
    three(history)
    history.ended()
    history.do(clear(on_clear="continue"))
    assert described(history.ask(condemn(1, 2, 3))) == "Held"


def test_policy_of_the_newest_attempt_is_in_force() -> None:
    history = History()
    assert policy_of(history.state) == KeepLatest(2)
    keeping(KeepAll(), 1)(history)
    history.ended("failed")
    assert policy_of(history.state) == KeepAll()
    history.started(try_number=2, checkpointing=CheckpointConfig(retention=KeepLatest(1)).to_json())
    assert policy_of(history.state) == KeepLatest(1)


# -- file sets --------------------------------------------------------------------------------------------------------------


def paths(history: History, numbers: frozenset[int]) -> set[str]:
    known = history.state.paths()
    return {known[number] for number in numbers}


def test_file_set_is_referred_to_by_every_checkpoint_that_reuses_it() -> None:
    """P12."""
    history = History()
    history.started(checkpointing=CheckpointConfig(retention=KeepLatest(1)).to_json())
    history.completed()
    history.completed(file_set(1, 1))
    history.condemned(1)
    assert paths(history, history.state.referred()) == {file_set(1, 1), file_set(2, 1)}


def test_running_attempt_holds_the_file_sets_of_its_restore_point() -> None:
    """B32: its DataFrames read them, whatever became of the checkpoint since."""
    history = History()
    restored(history)
    history.completed()
    history.completed()
    history.condemned(3)
    assert file_set(3, 1) in paths(history, history.state.referred())
    history.do(c.Forget(ids=(3,)))
    assert file_set(3, 1) in paths(history, history.state.referred())
    history.ended("failed")
    assert file_set(3, 1) not in paths(history, history.state.referred())


def test_condemned_checkpoint_is_no_restore_point() -> None:
    """The run finished, its state is on its way out, and somebody clears it to go on: refused, not half a restore."""
    history = History("day-1")
    three(history)
    history.ended()
    history.condemned(1, 2, 3)
    assert described(history.ask(clear(on_clear="continue"))) == "StateRequired"
    assert described(history.ask(clear())) == "branch 1 from nothing, launch 2 from nothing"


@pytest.mark.parametrize(
    ("path", "free"),
    [
        (file_set(1, 1), True),
        (file_set(1, 2), False),
        (file_set(1, 3), False),
    ],
    ids=["its attempt is over", "its attempt lives", "above the last epoch that is believed (B18)"],
)
def test_file_set_of_an_ended_attempt_is_deletable(path: str, free: bool) -> None:
    history = History()
    history.started()
    history.started(try_number=2)
    assert history.state.deletable(path) is free


def test_forget_drops_unreferred_file_sets() -> None:
    history = History()
    three(history)
    history.condemned(1, 2)
    history.do(c.Forget(ids=(1, 2)))
    assert [known.path for known in history.state.file_sets] == [file_set(3, 1)]
    assert [checkpoint.file_sets for checkpoint in history.state.checkpoints] == [(), (), (3,)]
