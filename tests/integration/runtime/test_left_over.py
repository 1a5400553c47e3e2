"""Restored states that the script does not use: kept, or dropped if that is allowed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig, KindChanged, NonRestoredState
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.text.work import reused_stages
from tests.integration.runtime.conftest import Broken, Launch, Script
from tests.support.launches import Launches


@pytest.fixture
def begun(script: Script) -> Script:
    """An earlier run left two values. The first attempt of the next run failed, and left two stages, too."""
    with script.attempt() as job:
        job.value("count", 0).set(0)
        job.value("seen", []).set([])
    with script.failing() as job:
        job.value("count", 0).set(1)
        job.value("seen", []).set(["a"])
        job.stage("clean", job.spark.range(3))
        job.stage("named", job.spark.range(5))
    assert held(script).keys() == {"clean", "named", "count", "seen"}
    return script


def ask_for_half(job: CheckpointedJob) -> None:
    job.value("count", 0).set(2)
    job.stage("clean", job.spark.range(3))


def held(script: Script) -> dict[str, StateSnapshot]:
    """What the newest checkpoint holds."""
    coordinator = script.coordinator()
    return dict(coordinator.contents(coordinator.state.retained[-1])[0].states)


def said(out: str) -> list[str]:
    """Return the codes of the lines that name unused state."""
    lines = [line for line in out.splitlines() if "this run did not use" in line]
    return [line[line.index("[CKP") + 1 : -1] for line in lines]


@pytest.mark.parametrize(
    ("allowed", "left", "codes"),
    [
        (False, {"clean", "count", "named", "seen"}, ["CKP426"]),
        pytest.param(True, {"clean", "count"}, ["CKP427"], marks=pytest.mark.slow),  # the next one allows a part of it
        (["seen"], {"clean", "count", "named"}, ["CKP427", "CKP426"]),
        pytest.param(  # the first one drops nothing either
            *(["count", "no such state"], {"clean", "count", "named", "seen"}, ["CKP426"]), marks=pytest.mark.slow
        ),
    ],
)
def test_unclaimed_states_are_kept_or_dropped_at_the_end(
    begun: Script, capsys: pytest.CaptureFixture[str], allowed: Any, left: set[str], codes: list[str]
) -> None:
    before = held(begun)
    with begun.attempt(allow_non_restored_state=allowed) as job:
        ask_for_half(job)
        job.checkpoint()
        assert held(begun).keys() == before.keys(), "the script may yet come to it"
    after = held(begun)
    assert after.keys() == left
    assert all(after[uid] == before[uid] for uid in left - {"count"}), "handed on as restored"
    assert said(capsys.readouterr().out) == codes
    state = begun.coordinator().state
    reused = reused_stages(state, state.attempts[-1], state.runs[-1].key)
    assert [stage.uid for stage in reused or ()] == ["clean"], "'named' was stored, and nobody has used it"


def test_dropped_state_causes_a_last_checkpoint(begun: Script) -> None:
    number = begun.coordinator().state.retained[-1].id
    with begun.attempt(allow_non_restored_state=["seen"]) as job:
        job.value("count")
        for uid, rows in (("clean", 3), ("named", 5)):
            job.stage(uid, job.spark.range(rows))
    assert begun.coordinator().state.retained[-1].id == number + 1
    assert held(begun).keys() == {"clean", "named", "count"}
    with begun.attempt() as job:
        job.value("count")
        assert job.value("seen", []).get() == [], "it begins anew"


@pytest.mark.parametrize(("allowed", "left"), [(False, set()), ("keep", {"once"}), ({"once": "keep"}, {"once"})])
def test_value_that_no_finished_attempt_has_is_dropped(
    script: Script, capsys: pytest.CaptureFixture[str], allowed: Any, left: set[str]
) -> None:
    with script.failing() as job:
        job.value("once").set(1)
        job.stage("clean", job.spark.range(3))
    with script.attempt(allow_non_restored_state=allowed) as job:
        job.stage("clean", job.spark.range(3))
    assert held(script).keys() == left | {"clean"}
    assert said(capsys.readouterr().out) == ["CKP426" if left else "CKP427"]


def test_failed_attempt_drops_no_state(begun: Script, capsys: pytest.CaptureFixture[str]) -> None:
    with begun.failing(allow_non_restored_state=True) as job:
        ask_for_half(job)
        job.checkpoint()
    assert held(begun).keys() == {"clean", "named", "count", "seen"}
    assert said(capsys.readouterr().out) == []


@pytest.mark.slow  # test_dropped_state_causes_a_last_checkpoint begins another run
def test_stages_of_another_run_are_not_logged_as_unclaimed(begun: Script, capsys: pytest.CaptureFixture[str]) -> None:
    """They end with their run."""
    with begun.attempt() as job:
        ask_for_half(job)
        job.stage("named", job.spark.range(5))
        job.value("seen")
    with begun.attempt() as job:
        job.value("count")
        job.value("seen")
    assert said(capsys.readouterr().out) == []


def test_state_is_not_replaced_by_another_kind(begun: Script) -> None:
    with begun.attempt() as job:
        with pytest.raises(KindChanged, match="'seen' is a value"):
            job.stage("seen", job.spark.range(3))
        with pytest.raises(KindChanged, match="'named' is a stage"):
            job.value("named")
    assert held(begun).keys() == {"clean", "named", "count", "seen"}


def test_invalid_allow_non_restored_state_is_refused_before_the_attempt(script: Script) -> None:
    with (
        pytest.raises(InvalidConfig, match="allow_non_restored_state='seen': write"),
        script.attempt(allow_non_restored_state="seen"),
    ):
        pass
    assert script.coordinator().state.n < 0


def test_allow_non_restored_state_of_the_task_wins(
    launched: Launch, launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(Broken), launched() as job:
        job.value("count").set(1)
        job.value("seen").set(1)
        job.checkpoint()
        raise Broken
    confs = launches.plan(2) | {"spark.checkpointed.allow_non_restored_state": '["seen"]'}
    with launched(confs, allow_non_restored_state=["count"]) as job:
        job.value("count").set(2)
    coordinator = launches.coordinator()
    assert coordinator.contents(coordinator.state.retained[-1])[0].states.keys() == {"count"}
    out = capsys.readouterr().out
    assert "allow_non_restored_state of the task is used, not allow_non_restored_state of the script" in out
    assert said(out) == ["CKP427"]


# -- a wrong name ------------------------------------------------------------------------------------------------------


def finish_run(script: Script) -> None:
    """Run the script to its end, so that the next attempt begins a new run."""
    with script.attempt() as job:
        job.value("totals", 0).set(5)


def run_with_a_wrong_name(script: Script) -> None:
    with script.attempt() as job:
        job.value("totalz", 0).set(1)
        job.stage("clean", job.spark.range(3))


def test_wrong_name_ends_the_attempt_and_the_corrected_script_reuses_all_stages(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    finish_run(script)
    for _ in ("first attempt", "its retry"):
        with pytest.raises(NonRestoredState, match=r"'totals', and used the new value 'totalz'"):
            run_with_a_wrong_name(script)
        assert script.coordinator().state.attempts[-1].outcome == "failed"
        assert held(script).keys() == {"clean", "totals", "totalz"}
    script.change("corrected")
    recomputed = script.recomputes("clean")
    with script.attempt() as job:
        assert job.value("totals", 0).get() == 5
        job.stage("clean", job.spark.range(3))
    assert not recomputed()
    assert script.coordinator().state.runs[-1].outcome == "finished"
    assert held(script).keys() == {"clean", "totals"}
    assert said(capsys.readouterr().out) == ["CKP427"], "of 'totalz', which no finished attempt has"


@pytest.mark.parametrize(
    ("allowed", "left"),
    [("keep", {"totals", "totalz"}), ({"totals": "keep"}, {"totals", "totalz"}), (["totals"], {"totalz"})],
)
def test_state_that_may_stay_unused_is_no_wrong_name(script: Script, allowed: Any, left: set[str]) -> None:
    finish_run(script)
    with script.attempt(allow_non_restored_state=allowed) as job:
        job.value("totalz", 0).set(1)
    assert held(script).keys() == left


def test_wrong_name_in_a_launched_driver_exits_with_3(launched: Launch, launches: Launches) -> None:
    with launched() as job:
        job.value("totals").set(1)
    with pytest.raises(SystemExit) as ended:
        run_launched_with_a_wrong_name(launched(launches.plan(run="day-2")))
    assert ended.value.code == 3
    attempt = launches.coordinator().state.attempts[-1]
    assert (attempt.outcome, attempt.exit_code) == ("failed", 3)


def run_launched_with_a_wrong_name(attempt: CheckpointedJob) -> None:
    with attempt as job:
        job.value("totalz").set(2)
