"""The first log lines of a task: why there is a new attempt, and where it starts. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.storage.memory import named
from airflow_checkpoint_provider.text import restore_story, summary_table
from tests.support.recorded import Recorded, at, second_attempt, three_stages
from tests.unit.text.conftest import Golden

LAST_BEAT = Beat(counter=7, at=at("02:51:07"), epoch=1)


def story(recorded: Recorded, seen: restore_story.StoryFacts | None = None) -> list[str]:
    launch = recorded.state.current_launch()
    assert launch
    return restore_story.launch_story(
        recorded.before, recorded.state, launch, recorded.restored, seen or restore_story.StoryFacts()
    )


def test_story_of_a_retry_after_a_driver_vanished(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.launched("03:02:10", try_number=2)
    beat = Beat(
        attached_at=at("03:02:51"), application_change="application unchanged", reused=("clean", "weather", "planes"), activity="stage 'delays'"
    )  # fmt: skip
    golden("retry", [*story(recorded, restore_story.StoryFacts(beat=LAST_BEAT)), *restore_story.driver_says(beat)])


def test_story_of_a_retry_after_a_driver_failed(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("02:51:07", "failed", 137, "task")
    recorded.launched("03:02:10", try_number=2)
    golden("retry_after_failure", story(recorded))


def test_time_in_which_nothing_ran_is_not_work_that_is_not_stored() -> None:
    """The job waited for hours before the second attempt, and that completed nothing."""
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("02:51:07", "failed", 1)
    recorded.started("09:00:00", try_number=2)
    recorded.ended("09:00:05", "failed", 1)
    recorded.launched("09:30:00", try_number=3)
    assert story(recorded)[-1].endswith("Not stored: 5.0 s of attempt 2")


def test_story_of_a_retry_with_nothing_completed(golden: Golden) -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.triggered("stage 'clean'", "23:12:32")
    recorded.ended("23:12:33", "failed", 1)
    recorded.launched("23:17:40", try_number=2)
    golden("retry_from_nothing", story(recorded))


def test_story_of_a_stream_without_a_completed_checkpoint(golden: Golden) -> None:
    """Its queries have committed batches all the same, and continue after them."""
    recorded = Recorded(scope="")
    recorded.started("22:00:20", run="monday")
    recorded.coordinator.journal.append(
        c.LocateQuery(uid="orders", path="query/orders/1-abc", taken_from=None, begun=-1, committed=-1, epoch=1)
    )
    recorded.ended("22:00:33", "failed", 137, "task")
    recorded.started("22:01:40", try_number=2, run="monday")
    retry = story(recorded)
    recorded.ended("22:01:52", "failed", 1)
    recorded.launched("23:00:00", run="tuesday")
    golden("stream_without_a_checkpoint", [*retry, "", *story(recorded)])


HEAP, OVERHEAD = "spark.driver.memory", "spark.executor.memoryOverhead"


@pytest.mark.parametrize(
    ("had", "has", "cause", "line"),
    [
        ({HEAP: "2g"}, {HEAP: "3g"}, "driver_heap",
         "the driver ran out of memory (Java heap): this launch has spark.driver.memory=3g, 1.5 times that of launch 1"),
        ({OVERHEAD: "384m"}, {OVERHEAD: "576m"}, "executor_overhead",
         "executors ran out of memory (their containers'): this launch has spark.executor.memoryOverhead=576m, 1.5 times that of launch 1"),
        ({HEAP: "2g"}, {HEAP: "2g"}, "driver_heap",
         "the driver ran out of memory (Java heap): this launch has spark.driver.memory=2g, as launch 1 had"),
        ({}, {HEAP: "3g"}, "driver_heap", "the driver ran out of memory (Java heap): this launch has spark.driver.memory=3g"),
        ({}, {}, "driver_heap", 'the driver ran out of memory (Java heap): memory_after_oom="1.5 x" would give a retry more'),
        ({HEAP: "2g"}, {HEAP: "2g"}, "", None),
        ({HEAP: "2g"}, {HEAP: "3g"}, "of a later version", None),
    ],
)  # fmt: skip
def test_story_says_what_memory_a_retry_has(
    had: dict[str, str], has: dict[str, str], cause: str, line: str | None
) -> None:
    recorded = Recorded()
    recorded.launched("22:00:20", memory=had)
    recorded.attached("22:00:21")
    recorded.ended("22:51:07", "failed", 52, "task", cause=cause)
    recorded.launched("23:02:10", try_number=2, memory=has)
    said = [text for text in story(recorded) if text.startswith("  memory")]
    assert said == ([f"  {'memory':<12}{line}"] if line else [])


def test_story_of_a_retry_with_more_memory(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("02:51:07", "failed", 52, "task", cause="driver_heap")
    recorded.launched("03:02:10", try_number=2, memory={HEAP: "3g"})
    golden("retry_out_of_memory", story(recorded))


def test_story_of_a_retry_whose_driver_never_attached(golden: Golden) -> None:
    recorded = Recorded()
    recorded.launched("22:00:20")
    recorded.launched("22:05:20", try_number=2)
    golden("retry_never_attached", story(recorded))


def test_story_of_a_task_marked_failed_and_cleared(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.told_to_stop("02:51:07")
    recorded.ended("02:51:08", "cancelled", 79)
    recorded.launched("12:30:00", try_number=2, generation=1)
    golden("clear", story(recorded))


def test_story_of_a_replaced_living_driver(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.launched("02:52:10", try_number=2, durable=False, seen_alive=True)
    golden("replaced_alive", story(recorded, restore_story.StoryFacts(beat=LAST_BEAT, alive=True)))


def test_story_of_a_cleared_finished_run(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    recorded.launched("09:30:00", try_number=3, generation=1)
    golden("clear_of_finished", story(recorded))


def test_story_with_many_candidates_is_cut(golden: Golden) -> None:
    recorded = Recorded()
    recorded.launched("22:00:20")
    recorded.attached("22:00:21", timeout_s=600.0, retention={"keep": "all"})
    for minute in range(10, 16):
        recorded.stage(f"s{minute}", f"22:{minute}:00", f"22:{minute}:01", work_s=50, kib=1)
    for minute in range(20, 28):
        recorded.aborted(recorded.triggered("checkpoint()", f"22:{minute}:00"), f"22:{minute}:01", "store failed")
    recorded.launched("22:30:00", try_number=2)
    golden("many_candidates", story(recorded))


# -- the first attempt of a run --------------------------------------------------------------------------------------------


def test_story_of_the_first_attempt_of_a_run(golden: Golden) -> None:
    recorded = Recorded()
    recorded.launched("22:00:20")
    golden("first", story(recorded))


def test_story_of_a_run_from_nothing(golden: Golden) -> None:
    recorded = Recorded()
    recorded.launched("22:00:20", restore="none")
    golden("first_none", story(recorded))


def test_story_of_a_job_without_a_history(golden: Golden) -> None:
    recorded = Recorded(job="etl.orders", scope="")
    recorded.launched("22:00:20", run="scheduled__2026-11-20")
    golden("first_of_job", story(recorded, restore_story.StoryFacts(root="file:///lake/ckp")))


def test_story_of_a_job_whose_runs_completed_nothing(golden: Golden) -> None:
    recorded = Recorded(job="etl.orders", scope="")
    recorded.started("22:00:20", run="scheduled__2026-11-20")
    recorded.ended("22:01:00", "failed", 1)
    recorded.launched("23:00:20", run="scheduled__2026-11-21")
    golden("nothing_in_job", story(recorded, restore_story.StoryFacts(root="file:///lake/ckp")))


def test_story_of_the_next_run_of_a_job(golden: Golden) -> None:
    recorded = Recorded(job="etl.orders", scope="")
    recorded.started("22:00:20", run="scheduled__2026-11-20")
    recorded.value("high_water", 41)
    recorded.stage("clean", "22:10:00", "22:10:02", work_s=540, kib=4)
    recorded.ended("22:10:03")
    recorded.launched("23:00:20", run="scheduled__2026-11-21")
    golden("next_run_of_job", story(recorded))


def test_items_that_the_run_has_done_are_work_that_is_stored_and_saved() -> None:
    recorded = Recorded(job="etl.orders", scope="")
    recorded.started("22:00:20", run="monday")
    recorded.stage("clean", "22:10:00", "22:10:02", work_s=540, kib=4)
    recorded.item_done("days", "22:11:00", "22:11:01", work_s=25)
    recorded.ended("22:11:02", "failed", 1)
    recorded.started("22:20:00", try_number=2, run="monday")
    assert "Stored: 9 min 25 s of work (clean 9 min, days 25 s)" in story(recorded)[-1]
    recorded.ended("22:21:00")
    assert summary_table.summarize(recorded.state, "monday").saved_s == 565


def test_story_of_the_next_run_with_registered_objects(golden: Golden) -> None:
    recorded = Recorded(job="etl.orders", scope="")
    recorded.started("22:00:20", run="scheduled__2026-11-20")
    recorded.value("source", {"at": 41}, kind="registered")
    recorded.value("session", "a", kind="registered")
    recorded.stage("clean", "22:10:00", "22:10:02", work_s=540, kib=4)
    recorded.ended("22:10:03")
    recorded.launched("23:00:20", run="scheduled__2026-11-21")
    golden("next_run_with_objects", story(recorded))


def test_story_of_a_run_from_another_history(golden: Golden) -> None:
    other = Recorded(named("pointed"), scope="scheduled__2026-11-19")
    three_stages(other)
    recorded = Recorded(other.store)
    pointer = str(Pointer(other.store.uri, other.keys.prefix, 3))
    recorded.launched("12:30:00", restore=pointer, base=Point(pointer=pointer))
    golden("first_from_pointer", story(recorded))


def test_story_of_a_script_without_airflow(golden: Golden) -> None:
    recorded = Recorded(job="delays", scope="")
    recorded.started("22:00:20", run="alone-1")
    recorded.stage("clean", "22:10:00", "22:10:02", work_s=540, kib=4)
    recorded.launched("22:40:00", try_number=2, run="alone-1")
    recorded.attached("22:40:01")
    golden("alone", restore_story.restore_story(recorded.state, recorded.restored))
    assert restore_story.restore_story(Recorded().state, recorded.restored) == []


# -- nothing is submitted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attached", [True, False])
def test_story_of_an_adopted_living_driver(golden: Golden, attached: bool) -> None:
    recorded = Recorded()
    recorded.launched("22:00:20")
    beat = Beat(counter=1, at=at("22:00:26"), activity="submitting")
    if attached:
        recorded.attached("22:00:21")
        beat = Beat(counter=9, at=at("22:00:26"), activity="stage 'delays'", fraction=0.61)
    recorded.launched("22:00:30", try_number=2, seen_alive=True)
    golden(
        f"adopted_{'attached' if attached else 'queued'}",
        story(recorded, restore_story.StoryFacts(beat=beat, now=at("22:00:30"))),
    )


def test_story_announces_the_liveness_check(golden: Golden) -> None:
    recorded = Recorded()
    recorded.launched("22:00:20")
    before = restore_story.waits_for_heartbeat(recorded.state, 30.0)
    recorded.attached("22:00:21")
    golden("looking", [before, restore_story.waits_for_heartbeat(recorded.state, 30.0)])
