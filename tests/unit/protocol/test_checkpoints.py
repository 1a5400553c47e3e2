"""Trigger, complete, abort: one outcome per checkpoint (docs/inside/properties.md, P1 to P3). Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.completion import outcome, subsumed_by
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.state import KEPT_RECORDS
from tests.support.causes import cause_of
from tests.support.histories import Given, History, complete, described, entry, in_turn, refusal, triggered


def running(h: History) -> None:
    h.started()


def pending(h: History) -> None:
    running(h)
    h.triggered("asked")


def completed(h: History) -> None:
    pending(h)
    h.completed(number=1)


def confirmed(h: History) -> None:
    completed(h)
    h.do(c.ConfirmCommits(id=1, epoch=1))


def aborted(h: History) -> None:
    pending(h)
    h.do(c.Abort(id=1, reason="expired"))


def condemned(h: History) -> None:
    """Complete three checkpoints and condemn chk-1; the default keeps two."""
    completed(h)
    h.completed()
    h.completed()
    h.condemned(1)


def forgotten(h: History) -> None:
    condemned(h)
    h.do(c.Forget(ids=(1,)))


def ended(h: History) -> None:
    running(h)
    h.ended()


def gated(h: History) -> None:
    running(h)
    h.write(triggered(1, gated=True))


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(running, c.Trigger(request=e.Request(token="asked"), epoch=1), "trigger chk-1", id="the driver's"),
        pytest.param(running, c.Trigger(request=e.Request(token="asked")), "trigger chk-1", id="anyone's"),
        pytest.param(pending, c.Trigger(request=e.Request(token="asked")), "done 1", id="known: pending"),
        pytest.param(completed, c.Trigger(request=e.Request(token="asked")), "done 1", id="known: completed"),
        pytest.param(completed, c.Trigger(request=e.Request(token="asked", try_number=2)), "done 1", id="known: completed, and a later try asks"),
        pytest.param(aborted, c.Trigger(request=e.Request(token="asked")), "done 1", id="known: aborted, and the same try asks"),
        pytest.param(aborted, c.Trigger(request=e.Request(token="asked", try_number=2)), "trigger chk-2", id="known: aborted, and a later try asks"),
        pytest.param(in_turn(aborted, lambda h: h.triggered("asked", try_number=2)), c.Trigger(request=e.Request(token="asked")), "done 2",
                     id="known: answered with its newest"),
        pytest.param(forgotten, c.Trigger(request=e.Request(token="asked", try_number=2)), "done 1", id="known: forgotten"),
        pytest.param(in_turn(completed, lambda h: h.launched(try_number=2)), c.Trigger(request=e.Request(token="asked"), epoch=1), "done 1",
                     id="known: also told to an attempt that is over"),
        pytest.param(pending, c.Trigger(request=e.Request(token="other")), "Busy", id="another is pending"),
        pytest.param(lambda h: None, c.Trigger(request=e.Request(token="asked")), "NotRunning", id="no history"),
        pytest.param(lambda h: h.launched(), c.Trigger(request=e.Request(token="asked")), "NotAttached", id="planned, no driver yet"),
        pytest.param(ended, c.Trigger(request=e.Request(token="asked")), "NotRunning", id="ended"),
        pytest.param(in_turn(running, lambda h: h.launched(try_number=2)), c.Trigger(request=e.Request(token="asked")), "NotAttached", id="replaced"),
        pytest.param(in_turn(running, lambda h: h.launched(try_number=2)), c.Trigger(request=e.Request(token="asked"), epoch=1), "Fenced",
                     id="by an attempt that is over"),
    ],
)  # fmt: skip
def test_trigger_by_situation(given: Given, asked: c.Trigger, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(asked)) == answer


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(pending, complete(1), "complete chk-1", id="anyone completes it"),
        pytest.param(pending, complete(1, epoch=1), "complete chk-1", id="the driver does"),
        pytest.param(completed, complete(1), "done 1", id="the same digest again"),
        pytest.param(completed, complete(1, digest="other"), "NotPending", id="another digest"),
        pytest.param(condemned, complete(1), "done 1", id="the same digest, condemned since"),
        pytest.param(forgotten, complete(1), "done 1", id="the same digest, forgotten since"),
        pytest.param(in_turn(completed, lambda h: h.launched(try_number=2)), complete(1, epoch=1), "done 1",
                     id="the same digest, by an attempt that is over"),
        pytest.param(aborted, complete(1), "NotPending", id="aborted: discarded"),
        pytest.param(in_turn(pending, lambda h: h.launched(try_number=2)), complete(1, epoch=1), "Fenced", id="by an attempt that is over"),
        pytest.param(in_turn(pending, lambda h: h.launched(try_number=2)), complete(1), "NotPending", id="of an attempt that is over"),
        pytest.param(running, complete(9), "NotPending", id="never triggered"),
        pytest.param(pending, complete(1, acknowledged=()), "NotPending", id="not acknowledged"),
        pytest.param(gated, complete(1, epoch=1), "NotPending", id="gated: only its finalize task (B30)"),
    ],
)  # fmt: skip
def test_complete_by_situation(given: Given, asked: c.Complete, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(asked)) == answer


@pytest.mark.parametrize(
    ("given", "epoch", "answer"),
    [
        pytest.param(completed, 1, "confirm chk-1", id="the driver confirms it"),
        pytest.param(confirmed, 1, "done 1", id="confirmed already"),
        pytest.param(
            in_turn(confirmed, lambda h: h.ended()), 1, "done 1", id="confirmed already, by an attempt that is over"
        ),
        pytest.param(in_turn(completed, lambda h: h.ended()), 1, "Fenced", id="the attempt is over"),
        pytest.param(condemned, 1, "confirm chk-1", id="condemned: it was completed"),
        pytest.param(forgotten, 1, "confirm chk-1", id="forgotten: it was completed"),
        pytest.param(pending, 1, "NotPending", id="pending"),
        pytest.param(aborted, 1, "NotPending", id="aborted"),
        pytest.param(running, 1, "NotPending", id="never triggered"),
    ],
)
def test_confirm_commits_by_situation(given: Given, epoch: int, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(c.ConfirmCommits(id=1, epoch=epoch))) == answer


def test_confirm_commits_flag_of_a_queued_request_is_kept() -> None:
    history = History()
    running(history)
    history.do(c.Trigger(request=e.Request(token="first", origin="task")))
    history.do(c.Trigger(request=e.Request(token="asked", origin="task", confirm_commits=True)))  # queued
    history.completed(number=1)
    found = history.state.checkpoint(2)
    assert found
    assert (found.request.confirm_commits, found.commits_confirmed) == (True, False)
    history.completed(number=2)
    history.do(c.ConfirmCommits(id=2, epoch=1))
    found = history.state.checkpoint(2)
    assert found
    assert (found.commits_confirmed, found.status) == (True, "retained")


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(pending, c.Abort(id=1, reason="expired"), "abort chk-1", id="anyone aborts it"),
        pytest.param(pending, c.Abort(id=1, reason="declined", epoch=1), "abort chk-1", id="the driver declines"),
        pytest.param(aborted, c.Abort(id=1, reason="another reason"), "done 1", id="aborted already"),
        pytest.param(in_turn(pending, lambda h: h.launched(try_number=2)), c.Abort(id=1, reason="declined", epoch=1), "done 1",
                     id="aborted already, by the launch that replaced the attempt"),
        pytest.param(completed, c.Abort(id=1, reason="expired"), "NotPending", id="completed"),
        pytest.param(forgotten, c.Abort(id=1, reason="expired"), "NotPending", id="forgotten"),
        pytest.param(running, c.Abort(id=9, reason="expired"), "NotPending", id="never triggered"),
    ],
)  # fmt: skip
def test_abort_by_situation(given: Given, asked: c.Abort, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(asked)) == answer


def test_refused_completion_names_missing_applications() -> None:
    history = History()
    running(history)
    history.write(triggered(1, plan=("orders", "payments")))
    error = refusal(history.ask(complete(1, acknowledged=("orders",))), errors.NotPending)
    assert "payments" in error.message
    assert "orders" not in error.message


def test_ids_rise_after_checkpoints_were_forgotten() -> None:
    """P2; B13."""
    history = History()
    condemned(history)
    history.do(c.Forget(ids=(1,)))
    history.do(c.Abort(id=history.triggered(), reason="expired"))
    assert history.triggered() == 5


def test_restore_point_is_the_highest_id_of_the_branch() -> None:
    """B44: the order of the entries does not count."""
    history = History()
    running(history)
    history.write(triggered(1, gated=True))
    history.write(triggered(2))
    history.do(complete(2))
    history.write(e.CheckpointCompleted(id=1, digest="d", metadata_bytes=9, bytes=0, states=()))
    assert history.state.restore_point() == Point(id=2)


def test_completion_subsumes_older_pending_checkpoints_of_its_plan() -> None:
    """B44: savepoints and gated checkpoints may complete later, as older points; so may a checkpoint with more applications."""
    history = History()
    running(history)
    history.write(
        triggered(1),
        triggered(2, gated=True),
        triggered(3, kind="savepoint"),
        triggered(4, plan=("", "other")),
        triggered(5),
        triggered(6),
    )
    five = history.state.checkpoint(5)
    assert five
    assert subsumed_by(history.state, five) == (1,)
    assert described(history.ask(complete(5))) == "complete chk-5 subsuming chk-1"
    history.do(complete(5))
    assert [checkpoint.id for checkpoint in history.state.pending] == [2, 3, 4, 6]
    first = history.state.checkpoint(1)
    assert first
    assert (outcome(first), cause_of(first).details) == ("aborted (subsumed)", "by chk-5")


def test_details_of_an_abort_are_kept() -> None:
    history = History()
    pending(history)
    history.do(
        c.Abort(
            id=1,
            reason="expired",
            phase="acknowledge",
            missing=("",),
            details="its batch 412 has been running for 14 min",
        )
    )
    found = history.state.checkpoint(1)
    assert found
    assert (found.reason, cause_of(found).phase, cause_of(found).missing) == ("expired", "acknowledge", ("",))
    assert cause_of(found).details == "its batch 412 has been running for 14 min"
    assert history.state.counts == {"aborted": 1}


def test_completed_checkpoint_keeps_measures_and_interns_file_sets() -> None:
    """Checkpoints refer to file sets by number, so a snapshot does not grow with reused file sets."""
    history = History()
    running(history)
    for _ in range(2):
        history.do(
            complete(
                history.triggered(), entry("clean", ("state/clean/1-a",), 1), entry("joined", ("state/joined/1-b",), 2)
            )
        )
    first, second = history.state.retained
    assert first.file_sets == second.file_sets == (1, 2)
    assert [file_set.path for file_set in history.state.file_sets] == ["state/clean/1-a", "state/joined/1-b"]
    assert all(state.file_sets == () for state in second.states)
    assert [(state.uid, state.measures.checkpoint) for state in second.states] == [("clean", 1), ("joined", 2)]


def test_repeated_request_gets_its_checkpoint_after_the_record_was_dropped() -> None:
    """P11: a trigger repeated after a hundred others must not take another checkpoint."""
    history = History()
    running(history)
    history.do(c.Abort(id=history.triggered("asked", origin="task"), reason="expired"))
    for _ in range(KEPT_RECORDS):
        history.do(c.Abort(id=history.triggered(), reason="expired"))
    assert history.state.checkpoint(1) is None
    assert described(history.ask(c.Trigger(request=e.Request(token="asked", origin="task")))) == "done 1"


def test_attempt_remembers_its_first_own_checkpoint() -> None:
    history = History()
    completed(history)
    history.completed()
    history.ended("failed")
    history.started(try_number=2)
    assert [attempt.first_completed for attempt in history.state.attempts] == [1, None]


@pytest.mark.parametrize(
    ("given", "command", "status"),
    [
        (completed, complete(1, digest="other"), "retained"),
        (aborted, complete(1), "aborted"),
        (running, complete(9), None),
        (gated, complete(1), "pending"),
        (pending, complete(1, acknowledged=()), "pending"),
        (completed, c.Abort(id=1, reason="expired"), "retained"),
        (pending, c.ConfirmCommits(id=1, epoch=1), "pending"),
        (running, c.ConfirmCommits(id=9, epoch=1), None),
        (completed, c.ConfirmPublished(id=1), "retained"),
        (running, c.ConfirmPublished(id=9), None),
        (running, c.Abort(id=9, reason="expired"), None),
    ],
)
def test_refused_command_names_the_status_of_the_checkpoint(
    given: Given, command: c.Command, status: str | None
) -> None:
    history = History()
    given(history)
    assert refusal(history.ask(command), errors.NotPending).about["status"] == status
