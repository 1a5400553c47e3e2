"""The story of an attempt, rebuilt from the journal alone. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import LaunchSpec, Point
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.storage.memory import named
from airflow_checkpoint_provider.text import restore_story
from tests.support.garbage import retire
from tests.support.recorded import Recorded, second_attempt, three_stages
from tests.unit.text.conftest import Golden


def retold(recorded: Recorded, epoch: int | None = None) -> list[str]:
    """Return the story of an attempt, or of the current launch if it has none."""
    attempt = recorded.state.attempt(epoch)
    launch = recorded.state.launch(attempt.launch) if attempt else recorded.state.current_launch()
    assert launch
    return restore_story.retold(recorded.state, launch, attempt)


def finished() -> Recorded:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    return recorded


def test_story_of_a_finished_retry(golden: Golden) -> None:
    golden("retold_retry", retold(finished(), 2))


def test_story_of_a_fenced_first_attempt(golden: Golden) -> None:
    golden("retold_first", retold(finished(), 1))


def test_story_of_a_launch_without_an_attempt(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("02:51:07", "failed", 137, "task")
    recorded.launched("03:02:10", try_number=2)
    golden("retold_launch", retold(recorded))


def test_story_of_a_launch_that_ended_and_of_the_next_try(golden: Golden) -> None:
    recorded = Recorded()
    recorded.launched("03:02:10")
    recorded.launch_ended("03:02:12")
    first = retold(recorded)
    recorded.launched("03:07:10", try_number=2)
    golden("retold_launch_ended", [*first, "", *retold(recorded)])


def test_story_names_only_candidates_of_that_time(golden: Golden) -> None:
    """Later checkpoints are no candidates; checkpoints deleted since are still named."""
    recorded = finished()
    retire(recorded.coordinator, recorded.clock)
    golden("retold_deleted", retold(recorded, 2))


def test_story_of_a_second_driver_of_one_launch(golden: Golden) -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.stage("clean", "22:10:00", "22:10:02", work_s=540, kib=4)
    launch = recorded.state.current_launch()
    assert launch
    recorded.coordinator.journal.append(c.StartAttempt(token=launch.spec.token, try_number=1, driver="another"))
    golden("retold_driver", retold(recorded, 2))


def test_story_of_an_attempt_after_a_restore_by_hand(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.clock = "2026-11-21T03:00:00.000Z"
    token = recorded.token("by hand")
    recorded.coordinator.journal.append(
        c.Restore(token=token, base=Point(id=2), by="cli", reason="restored by hand: checkpoints restore")
    )
    recorded.launched("03:02:10", try_number=2)
    recorded.attached("03:02:19")
    golden("retold_went_back", retold(recorded, 2))


def test_story_of_a_stopped_attempt_with_many_aborted_checkpoints(golden: Golden) -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    for minute in range(20, 28):
        recorded.aborted(
            recorded.triggered("checkpoint()", f"22:{minute}:00"), f"22:{minute}:01", "store failed", "503"
        )
    recorded.told_to_stop("22:30:00")
    recorded.ended("22:30:01", "cancelled", 79)
    golden("retold_cancelled", retold(recorded, 1))


def test_story_of_a_run_from_another_history(golden: Golden) -> None:
    other = Recorded(named("pointed again"), scope="scheduled__2026-11-19")
    three_stages(other)
    recorded = Recorded(other.store)
    pointer = str(Pointer("s3://lake/ckp", other.keys.prefix, 3))
    recorded.coordinator.journal.catch_up()
    asks = recorded.token()
    recorded.coordinator.journal.append(
        c.PlanLaunch(
            spec=LaunchSpec(
                token=asks,
                try_number=1,
                owner=asks.owner,
                run=asks.run,
                run_after=None,
                started_at=recorded.clock,
                restore=pointer,
            ),
            incarnation="1ncarnation",
            job=recorded.job,
            scope=recorded.scope,
            base=Point(pointer=pointer),
        )
    )
    recorded.attached("22:00:21")
    golden("retold_pointer", retold(recorded, 1))


def test_attempt_and_launch_that_ran_out_of_memory(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("02:51:07", "failed", 52, "task", cause="driver_heap")
    died = retold(recorded)
    recorded.launched("03:02:10", try_number=2)
    recorded.launch_ended("03:02:12", exit_code=None, cause="driver_overhead")
    golden("retold_out_of_memory", [*died, "", *retold(recorded)])
