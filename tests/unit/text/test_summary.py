"""The table that closes a task's log."""

from __future__ import annotations

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.text import summary_table
from tests.support.garbage import retire
from tests.support.recorded import Recorded, at, second_attempt, three_stages
from tests.unit.text.conftest import Golden


def summary(recorded: Recorded, run: str = "") -> list[str]:
    return summary_table.summary(recorded.state, run or recorded.scope)


def test_summary_of_a_run_with_two_attempts(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    table = summary(recorded)
    gone = retire(recorded.coordinator, recorded.clock)
    golden("summary_finished", [*table, summary_table.deleted_line(len(gone), recorded.state)])


def test_summary_is_equal_after_its_state_was_deleted(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    retire(recorded.coordinator, recorded.clock)
    golden("summary_deleted", summary(recorded))


def test_summary_of_a_vanished_driver(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    running = summary(recorded)
    recorded.ended("02:51:07", "failed", 137, "task")
    failed = summary(recorded)
    recorded.launched("03:02:10", try_number=2)
    golden("summary_failed", [*running, "", *failed, "", *summary(recorded)])


def test_summary_of_a_run_that_ran_out_of_memory(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("02:51:07", "failed", 52, "task", cause="driver_heap")
    failed = summary(recorded)
    recorded.launched("03:02:10", try_number=2)
    recorded.launch_ended("03:02:12", exit_code=None, cause="driver_overhead")
    launched = summary(recorded)
    recorded.started("03:05:10", try_number=3)
    recorded.ended("03:06:10")
    golden("summary_out_of_memory", [*failed, "", *launched, "", *summary(recorded)])


def test_summary_of_a_driver_that_never_attached(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("02:51:07", "failed", 137, "task")
    recorded.launched("03:02:10", try_number=2)
    recorded.launch_ended("03:02:12")
    golden("summary_launch_ended", summary(recorded))


def test_summary_of_a_run_without_a_checkpoint(golden: Golden) -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.ended("22:00:50", "failed", 1)
    golden("summary_empty", summary(recorded))


def test_summary_of_one_run_of_a_shared_history(golden: Golden) -> None:
    recorded = Recorded(job="etl.orders", scope="")
    for hour, run in ((20, "one"), (21, "two")):
        recorded.started(f"{hour}:00:00", run=run)
        recorded.stage("clean", f"{hour}:10:00", f"{hour}:10:02", work_s=540, kib=4)
        recorded.ended(f"{hour}:10:03")
    recorded.launched("22:00:00", run="three")
    golden(
        "summary_job_scope", [*summary(recorded, "one"), "", *summary(recorded, "two"), "", *summary(recorded, "three")]
    )


def test_stages_computed_again_are_not_counted_as_saved() -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.started("03:02:10", try_number=2)
    recorded.stage("planes", "04:26:00", "04:26:01", work_s=4900, kib=14.1)
    assert summary_table.summarize(recorded.state, recorded.scope).saved_s == 4320 + 6000


def test_saved_work_is_counted_per_attempt() -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.started("03:02:10", try_number=2)
    recorded.stage("delays", "03:10:00", "03:10:01", work_s=60, kib=14.1)
    recorded.started("03:12:10", try_number=3)
    recorded.ended("03:22:10")
    assert summary_table.summarize(recorded.state, recorded.scope).saved_s == 2 * (4320 + 6000 + 4920) + 60


def test_attempt_that_got_no_further_has_saved_nothing() -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.started("03:02:10", try_number=2)
    assert summary_table.summarize(recorded.state, recorded.scope).saved_s == 0
    recorded.ended("03:02:40", "failed", 3)
    recorded.started("03:12:10", try_number=3)
    assert summary_table.summarize(recorded.state, recorded.scope).saved_s == 0
    recorded.stage("delays", "03:20:00", "03:20:01", work_s=60, kib=14.1)
    assert summary_table.summarize(recorded.state, recorded.scope).saved_s == 4320 + 6000 + 4920


def test_long_table_shows_the_newest_rows() -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    for number in range(60):
        recorded.completed("checkpoint()", f"22:{number:02}:00", f"22:{number:02}:01")
    lines = summary(recorded)
    shown = [line.split()[0] for line in lines if line.startswith(" chk-")]
    assert shown == [f"chk-{number}" for number in range(11, 61)]
    assert any(line.startswith(" 10 older ones are not shown: ") for line in lines)


def with_savepoints() -> Recorded:
    """Return a run with a savepoint for whose barrier somebody has waited three minutes, and one that was aborted."""
    recorded = Recorded(job="etl.orders", scope="")
    recorded.started("22:00:00", run="one")
    recorded.stage("clean", "22:10:00", "22:10:02", work_s=540, kib=4)
    for time, token in (("22:11:00", "first"), ("22:15:00", "second")):
        recorded.clock = at(time)
        recorded.coordinator.trigger(
            Request(
                token=token, kind="savepoint", folder="s3://lake/savepoints", nonce="9f3c", origin="cli", owner="ann"
            )
        )
        number = recorded.state.pending[-1].id
        if token == "first":
            recorded.clock = at("22:14:00")
            recorded.completed_now(number)
    recorded.aborted(number, "22:20:00", "store failed", "denied")
    recorded.ended("22:20:03")
    return recorded


def test_savepoints_are_told_apart_with_their_place(golden: Golden) -> None:
    recorded = with_savepoints()
    golden(
        "summary_savepoints",
        [
            *summary(recorded, "one"),
            "",
            *summary_table.statistics(recorded.state, statistics.checkpoints(recorded.state)),
        ],
    )


def test_stage_that_the_next_script_does_not_use_is_not_counted_as_saved() -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.started("03:02:10", try_number=2)
    recorded.unused = ("clean",)
    recorded.stage("delays", "03:42:01", "03:42:02", work_s=2380, kib=1.9)
    assert summary_table.summarize(recorded.state, recorded.scope).saved_s == 6000 + 4920


def test_rows_that_were_copied_are_not_written_by_a_stage() -> None:
    """A full checkpoint, or a start from an own savepoint, makes the file sets anew: the same work, other files."""
    recorded = Recorded()
    three_stages(recorded)
    written = summary_table.summarize(recorded.state, recorded.scope).stages_wrote
    recorded.aborted(4, "02:51:00", "expired")
    recorded.stage("clean", "02:52:00", "02:52:01", work_s=4320, kib=18.0)
    assert (
        summary_table.summarize(recorded.state, recorded.scope).stages_wrote
        == written
        == int(18.0 * 512) * 2 + int(29.1 * 512) * 2 + int(14.1 * 512) * 2
    )


def test_run_without_stages_says_nothing_of_their_rows() -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.completed("checkpoint()", "22:10:00", "22:10:01")
    assert summary(recorded)[-2] == " 1 completed, 0 aborted"
