"""Where a launch starts: the table of events and defaults in docs/concepts/attempts.md, row by row. Runs anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.policies.retention import KeepLatest
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Point
from tests.support.histories import Given, History, at, clear, described, in_turn, launch, refusal, token, two_days

SEED = "file:///lake/ckp/jobs/orders/job/chk-7"


def retire(h: History) -> None:
    """Delete all checkpoints, as the task of a finished run does."""
    ids = tuple(checkpoint.id for checkpoint in h.state.retained)
    h.condemned(*ids)
    h.do(c.Forget(ids=ids))


def run_ended(how: str, *, seed: str | None = None, kept: bool = True) -> Given:
    """Return a step: one run completes chk-1 and ends as ``how``."""

    def given(h: History) -> None:
        seeded: dict[str, Any] = {"restore": seed, "base": Point(pointer=seed)} if seed else {}
        h.started("day-1", **seeded)
        h.completed()
        h.ended(how)
        if not kept:
            retire(h)

    return given


def fresh(_: History) -> None:
    """No history yet."""


def left(h: History) -> None:
    """Finish day-1; then day-2 opens a branch that begins before it."""
    run_ended("finished")(h)
    h.launched("day-2", restore="none")


def nothing_completed(h: History) -> None:
    h.started("day-1", restore=SEED, base=Point(pointer=SEED))
    h.ended("failed")


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(fresh, launch(), "open, launch 1 from nothing", id="first attempt: from nothing"),
        pytest.param(
            fresh, launch(restore=SEED, base=Point(pointer=SEED)), f"open, branch 1 from {SEED}, launch 1 from {SEED}",
            id="first attempt: restore=<pointer> seeds it",
        ),
        pytest.param(fresh, launch(require_state=True), "StateRequired", id="first attempt: require_state"),
        pytest.param(run_ended("failed"), launch(try_number=2), "launch 2 from chk-1", id="retry: the newest of this run"),
        pytest.param(run_ended("lost"), launch(try_number=2), "launch 2 from chk-1", id="retry after the driver was lost"),
        pytest.param(run_ended("cancelled"), launch(try_number=2), "launch 2 from chk-1", id="retry after a stop"),
        pytest.param(
            nothing_completed, launch(try_number=2, restore=SEED, base=Point(pointer=SEED)), f"launch 2 from {SEED}",
            id="retry, nothing completed: where the run started",
        ),
        pytest.param(
            run_ended("failed", seed=SEED), launch(try_number=2, restore=SEED, base=Point(pointer=SEED)), "launch 2 from chk-1",
            id="retry: restore=<pointer> does not rewind again",
        ),
        pytest.param(run_ended("failed"), clear(), "launch 2 from chk-1", id="clear of an unfinished run: continues"),
        pytest.param(
            run_ended("failed"), clear(on_clear="continue"), "launch 2 from chk-1", id="clear of an unfinished run: continue"
        ),
        pytest.param(
            run_ended("failed"), clear(on_clear="restart"), "branch 1 from nothing, launch 2 from nothing",
            id="clear of an unfinished run: restart",
        ),
        pytest.param(
            run_ended("failed", seed=SEED), clear(on_clear="restart"), f"branch 2 from {SEED}, launch 2 from {SEED}",
            id="clear of an unfinished run: restart goes where the run started",
        ),
        pytest.param(
            run_ended("finished"), clear(), "branch 1 from nothing, launch 2 from nothing", id="clear of a finished run"
        ),
        pytest.param(
            run_ended("finished", seed=SEED), clear(), f"branch 2 from {SEED}, launch 2 from {SEED}",
            id="clear of a finished run: from where it started",
        ),
        pytest.param(
            run_ended("finished", kept=False), clear(), "branch 1 from nothing, launch 2 from nothing",
            id="clear of a finished run whose state went",
        ),
        pytest.param(
            run_ended("finished"), clear(on_clear="continue"), "launch 2 from chk-1", id="clear of a finished run: continue"
        ),
        pytest.param(
            run_ended("finished", kept=False), clear(on_clear="continue"), "StateRequired",
            id="clear of a finished run: continue, but its state went",
        ),
        pytest.param(
            run_ended("finished", seed=SEED, kept=False), clear(on_clear="continue"), "StateRequired",
            id="clear of a finished run: continue, but only the point remains from which it started",
        ),
        pytest.param(run_ended("finished"), launch(try_number=2), "AlreadyFinished", id="retry of a finished run: nothing submitted"),
        pytest.param(
            run_ended("finished", kept=False), launch(try_number=2), "AlreadyFinished", id="retry of a finished run, its state gone"
        ),
    ],
)  # fmt: skip
def test_start_of_a_run_with_its_own_history(given: Given, asked: c.PlanLaunch, answer: str) -> None:
    history = History("day-1")
    given(history)
    assert described(history.ask(asked)) == answer


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(run_ended("finished"), launch("day-2"), "launch 2 from chk-1", id="next run: the latest of the history"),
        pytest.param(run_ended("failed"), launch("day-2"), "launch 2 from chk-1", id="next run: also when the last one failed"),
        pytest.param(
            run_ended("finished"), launch("day-2", restore="chk-1", base=Point(id=1)), "branch 1 from chk-1, launch 2 from chk-1",
            id="next run: restore=<id>",
        ),
        pytest.param(
            run_ended("finished"), launch("day-2", restore="none"), "branch 1 from nothing, launch 2 from nothing",
            id="next run: restore=none",
        ),
        pytest.param(
            two_days, clear("day-2"),
            "branch 1 from chk-1, launch 3 from chk-1", id="clear of the newest run, finished: the checkpoint before it",
        ),
        pytest.param(
            two_days, clear("day-1"), "RunIsOlder",
            id="clear of an older run",
        ),
        pytest.param(
            left, clear("day-1"),
            "launch 3 from nothing", id="clear of a finished run whose branch was left: goes on from the restore point",
        ),
        pytest.param(
            left,
            clear("day-1", on_clear="continue"), "launch 3 from nothing", id="... with continue, too",
        ),
        pytest.param(
            in_turn(two_days, lambda h: h.do(clear("day-2"))), clear("day-1"), "RunIsOlder",
            id="clear of a run older than one whose clear has just begun again",
        ),
    ],
)  # fmt: skip
def test_start_of_a_run_in_a_shared_history(given: Given, asked: c.PlanLaunch, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(asked)) == answer


def test_each_clear_of_a_finished_run_restarts_and_its_retry_continues() -> None:
    """Each clear of a finished run opens a branch of its own; a retry in between only continues."""
    history = History("day-1")
    run_ended("finished")(history)
    history.started(try_number=2, generation=1)
    history.completed()
    history.ended("failed")
    assert described(history.ask(launch(try_number=3, generation=1))) == "launch 3 from chk-2"
    history.started(try_number=3, generation=1)
    history.ended("finished")
    assert described(history.ask(launch(try_number=4, generation=1))) == "AlreadyFinished"
    assert described(history.ask(launch(try_number=4, generation=2))) == "branch 2 from nothing, launch 4 from nothing"


def test_checkpoints_after_the_base_are_kept_but_never_latest() -> None:
    """P5 and docs/concepts/attempts.md: such a checkpoint is listed and can be restored by name."""
    history = History()
    history.started("day-1")
    for _ in range(3):
        history.completed()
    history.ended()
    history.started("day-2", restore="chk-1", base=Point(id=1))
    assert history.state.restore_point() == Point(id=1)
    assert [checkpoint.id for checkpoint in history.state.retained] == [1, 2, 3]
    history.completed()
    assert history.state.restore_point() == Point(id=4)


def test_retry_does_not_start_from_checkpoints_after_the_base() -> None:
    history = History()
    history.started("day-1")
    history.completed()
    history.completed()
    history.ended()
    history.started("day-2", restore="chk-1", base=Point(id=1))
    history.ended("failed")
    assert described(history.ask(launch("day-2", 2, restore="chk-1", base=Point(id=1)))) == "launch 3 from chk-1"


def gone(h: History) -> None:
    """day-2 starts from chk-1 and finishes with chk-3; day-3 starts from chk-3 and fails; chk-1 and chk-2 are condemned."""
    checkpointing = CheckpointConfig(retention=KeepLatest(1)).to_json()
    h.started("day-1", checkpointing=checkpointing)
    h.completed()
    h.ended()
    h.started("day-2", checkpointing=checkpointing)
    h.completed()
    h.completed()
    h.ended()
    h.started("day-3", checkpointing=checkpointing)
    h.ended("failed")
    h.condemned(1, 2)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(clear("day-2"), id="a clear goes back to where the run started"),
        pytest.param(
            launch("day-4", restore="chk-1", base=Point(id=1)), id="restore=<id>, condemned since it was looked up"
        ),
        pytest.param(launch("day-4", restore="chk-9", base=Point(id=9)), id="restore=<id>, never there"),
    ],
)
def test_launch_from_a_deleted_checkpoint_is_refused(asked: c.PlanLaunch) -> None:
    """P5: the launch is refused and the state unchanged; a planned launch would fail every retry as damaged."""
    history = History()
    gone(history)
    error = refusal(history.ask(asked), errors.StateRequired)
    assert "restore=" in error.message
    assert error.permanent
    assert described(history.ask(launch("day-4"))) == "launch 4 from chk-3"


def test_refused_continue_names_a_retention_that_keeps_the_state() -> None:
    history = History("day-1")
    run_ended("finished", kept=False)(history)
    error = refusal(history.ask(clear(on_clear="continue")), errors.StateRequired)
    assert "retention=KeepWithin(days=7)" in error.message
    assert error.permanent


def test_run_keeps_the_time_of_its_first_launch() -> None:
    """``started_at`` is equal in every retry: scripts use it instead of ``now()`` (trap 8)."""
    history = History()
    history.started(started_at=at(0))
    history.ended("failed")
    history.started(try_number=2, started_at=at(30))
    run = history.state.run("day-1")
    assert run
    assert run.started_at == at(0)


def test_restore_from_another_history_raises_the_next_id() -> None:
    history = History()
    history.started("day-1", restore=SEED, base=Point(pointer=SEED), id_floor=7)
    assert history.state.next_id == 8


def restored_from_elsewhere() -> tuple[History, Point]:
    """A person restores a job from a place of another history, with what goes with that."""
    history, base = History(scope=""), Point(pointer="s3://backup/savepoint-old-7-a")
    history.started()
    history.completed()
    history.ended()
    history.do(
        c.Restore(
            token=token(task="restore"), base=base, by="ann", reason="by hand", rename={"a": "b"}, rewind_sink=True
        )
    )
    return history, base


def test_run_that_names_the_place_of_a_restore_starts_on_its_branch() -> None:
    """Its names and what its sinks may lose count. Whoever reads there must name it."""
    history, base = restored_from_elsewhere()
    branch = history.state.branch
    history.launched("day-2", restore=base.pointer, base=base)
    assert history.state.branch == branch
    assert history.state.launches[-1].restore_point == base


def test_later_run_that_names_the_place_again_opens_another_branch() -> None:
    history, base = restored_from_elsewhere()
    history.started("day-2", restore=base.pointer, base=base)
    history.ended()
    before = history.state.branch.number
    history.launched("day-3", restore=base.pointer, base=base)
    assert (history.state.branch.number, history.state.branch.rename) == (before + 1, {})
