"""Wrong names beside loops: a finished turn counts only together with what it has left, under the name that the script uses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_checkpoint_provider.errors import NonRestoredState
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point, Token
from airflow_checkpoint_provider.spark import CheckpointedJob
from tests.integration.runtime.conftest import Broken, Script
from tests.integration.runtime.looping import added, numbers, total


def run(
    job: CheckpointedJob,
    days: Sequence[str],
    *,
    frame: str = "sums",
    value: str = "seen",
    loop: str = "days",
    rate: str = "rate",
) -> list[int]:
    sums, seen, step = job.frame(frame, lambda: numbers(job)), job.value(value, 0), job.value(rate, 1)
    step.set(step.get())
    for _ in job.once(loop, days):
        added(sums, step.get())
        seen.set(seen.get() + 1)
    return [total(sums), seen.get()]


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"frame": "sum"}, "frame 'sums' so far, and used the new frame 'sum', which begins"),
        (
            {"frame": "sum", "value": "sen"},
            ", and has not used the restored value 'seen' so far, and used the new value",
        ),
        ({"loop": "dayz"}, "'days' so far, and used the new lasting loop 'dayz'"),
        ({"rate": "rte"}, "value 'rate' so far, and used the new value 'rte'"),
    ],
)
def test_turn_that_changes_a_state_under_a_wrong_name_is_not_stored(
    script: Script, wrong: dict[str, str], found: str
) -> None:
    with script.attempt() as job:
        assert run(job, ["mon"]) == [1, 1]
    before = script.coordinator().state.checkpoints[-1].id
    with pytest.raises(NonRestoredState) as refused, script.attempt() as job:
        run(job, ["mon", "tue"], **wrong)
    assert found in refused.value.message
    assert script.coordinator().state.checkpoints[-1].id == before, "the next run begins as this one did"
    script.change("corrected")
    with script.attempt() as job:
        assert run(job, ["mon", "tue"]) == [2, 2]


def test_new_states_beside_old_ones_are_no_wrong_names(script: Script) -> None:
    with script.attempt() as job:
        run(job, ["mon"])
    with script.attempt() as job:
        run(job, ["tue"], loop="fixes")  # before the loop that the history has, with items of its own
        late = job.frame("late", lambda: numbers(job))
        for _ in job.once("days", ["mon", "wed"]):
            added(late, 1)
        assert total(late) == 1


def test_name_that_is_corrected_between_two_attempts_loses_no_turn(script: Script) -> None:
    with script.failing() as job:
        run(job, ["mon"], frame="sum")
        raise Broken
    script.change("corrected")
    with pytest.raises(NonRestoredState, match=r"frame 'sum', and used the new frame 'sums'"), script.attempt() as job:
        assert run(job, ["mon"]) == [0, 1]
    with script.attempt(allow_non_restored_state=["sum"]) as job:
        run(job, ["mon"])


@pytest.mark.parametrize("allowed", [False, True])
def test_states_that_finished_turns_have_opened_stay(
    script: Script, capsys: pytest.CaptureFixture[str], allowed: bool
) -> None:
    def turns(job: CheckpointedJob, items: list[int], crash: int = 0) -> None:
        for number in job.iterate("rank", items, every=1):
            if number == 1:
                job.value("rate", 1).get()
                added(job.frame("sums", lambda: numbers(job)), 1)
            job.value(f"seen-{number}", 0).set(number)
            if number == crash:
                raise Broken

    for items, crash in (([1, 2, 3], 2), ([1, 2, 3, 4], 4)):  # the second run has a value of its own
        with script.failing() as job:
            turns(job, items, crash)
        capsys.readouterr()
        with script.attempt(allow_non_restored_state=allowed) as job:  # turns before the crash are not run again
            turns(job, items)
        assert "this run did not use" not in capsys.readouterr().out
    with script.attempt(allow_non_restored_state=True) as job:
        assert total(job.frame("sums", lambda: numbers(job))) == 2
        assert [job.value(f"seen-{number}", 0).get() for number in (1, 2, 3, 4)] == [1, 2, 3, 4]


def test_states_that_items_of_the_history_have_opened_stay(script: Script) -> None:
    def turns(job: CheckpointedJob, days: list[str]) -> None:
        for day in job.once("days", days):
            job.value(f"seen-{day}", 0).set(1)
            added(job.frame("sums", lambda: numbers(job)), 1)

    with script.failing() as job:
        turns(job, ["mon"])
        raise Broken
    script.change("mended")
    with script.attempt() as job:
        turns(job, ["mon"])  # the turn of another application is not run again
        job.frame("late", lambda: numbers(job))
    with script.attempt() as job:
        turns(job, ["mon", "tue"])
    with script.attempt(allow_non_restored_state="keep") as job:
        assert total(job.frame("sums", lambda: numbers(job))) == 2
        assert [job.value(f"seen-{day}", 0).get() for day in ("mon", "tue")] == [1, 1]


def test_frame_gets_its_new_name_by_a_restore(script: Script) -> None:
    with script.failing() as job:
        run(job, ["mon"], frame="sum")
        raise Broken
    script.change("corrected")
    newest = script.coordinator().state.checkpoints[-1].id
    token = Token(dag="", run=str(newest), task="checkpoints restore")
    command = c.Restore(token=token, base=Point(id=newest), rename={"sum": "sums"}, by="me", reason="to rename")
    script.coordinator().journal.append(command)
    with script.attempt() as job:
        assert run(job, ["mon"]) == [1, 1]
