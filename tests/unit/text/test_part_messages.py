"""Tests of the lines about stages in parts. Run anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.protocol.metadata import Measures, StateSnapshot
from airflow_checkpoint_provider.protocol.part_records import Part, PartsDetail, PartsProgress
from airflow_checkpoint_provider.text import part_messages, summary_table, work
from tests.support.acknowledgements import stage
from tests.support.recorded import Recorded

DAYS = PartsDetail(values=("mon", "tue", ["wed", 1]), done=(Part(),))


def test_line_says_how_many_parts_are_kept_and_what_they_save() -> None:
    days: StateSnapshot = stage("days", 7)
    assert part_messages.parts_reused(
        days, DAYS.progress, "application changed, this stage did not", unseen="an RDD"
    ) == (
        "stage 'days': 1 of 3 parts reused, 14 rows of chk-7, 1 h 12 min of work not run again; application changed, this stage did not;"
        " not compared: an RDD  [CKP120]"
    )


@pytest.mark.parametrize(
    ("values", "by", "change"),
    [
        (("mon", "tue", ["wed", 1]), None, ""),
        (("mon", "thu", ["wed", 1]), None, '3 → 3 of them: part 2 of 3 was "tue", and is "thu"'),
        (("mon", "tue"), None, '3 → 2 of them: part 3 of 2 was ["wed",1], and is none'),
        (("mon", "tue", ["wed", 1], None), None, "3 → 4 of them: part 4 of 4 was none, and is null"),
        (("mon", "tue", ["wed", 1.0]), None, '3 → 3 of them: part 3 of 3 was ["wed",1], and is ["wed",1.0]'),
        (("mon", "tue", ["wed", 1]), "day", "it was cut by a list, and is now by column `day`"),
    ],
)
def test_line_names_the_first_part_that_differs(values: tuple[object, ...], by: str | None, change: str) -> None:
    found = part_messages.list_changed(DAYS, values, by)
    assert found == change if by or not change else found == f"its list of parts changed, {change}"


def test_value_of_a_part_is_one_short_printable_line() -> None:
    assert part_messages.shown("a\nb") == '"a\\nb"'
    assert len(part_messages.shown("x" * 1000)) <= part_messages.LONGEST_PART + len(" … ")


def test_ends_of_parts_are_told_from_the_end_of_the_last_one_and_from_other_barriers() -> None:
    progress = PartsProgress(done=1, total=3)
    barrier = part_messages.barrier(progress, "it's\nit")
    assert barrier == "part 2 of 3 of stage 'it's\nit'"
    assert part_messages.is_between(barrier)
    assert not part_messages.is_between(part_messages.barrier(PartsProgress(done=2, total=3), "days"))
    assert not any(map(part_messages.is_between, ("stage 'part 1 of 3'", "end", "checkpoint()", "")))


# -- the work of an attempt --------------------------------------------------------------------------------------------


def with_parts(recorded: Recorded, done: int, work_s: float, time: str, kept_s: float = 0.0) -> None:
    """Complete a checkpoint with so many parts of three."""
    clean = recorded.states["clean"]
    (file_set,) = clean.file_sets
    file_sets = tuple(replace(file_set, path=f"{file_set.path}-{number}", files=()) for number in range(done))
    parts = PartsDetail(values=(1, 2, 3), done=(Part(),) * done, kept_s=kept_s)
    measures = Measures(barrier=f"part {done} of 3 of stage 'days'", work_s=work_s, new_bytes=7)
    detail = stage("days", 1).stage
    recorded.states["days"] = replace(
        clean, uid="days", kind="parts", file_sets=file_sets, measures=measures, stage=detail, parts=parts
    )
    recorded.completed(measures.barrier, f"{time}:01", f"{time}:02")


def test_work_of_parts_that_a_retry_keeps_is_counted_and_that_of_the_others_is_not() -> None:
    recorded = Recorded()
    recorded.launched("22:00:20")
    recorded.attached("22:00:38")
    recorded.stage("clean", "22:10:00", "22:10:03", work_s=500, kib=3)
    with_parts(recorded, 1, 100.0, "22:20")
    with_parts(recorded, 2, 210.0, "22:30")
    recorded.launched("23:02:10", try_number=2)
    recorded.attached("23:02:19")
    with_parts(recorded, 3, 330.0, "23:30", kept_s=210.0)
    first, second = recorded.state.attempts
    run = recorded.state.runs[-1].key
    assert work.reused_stages(recorded.state, first, run) == []
    reused = work.reused_stages(recorded.state, second, run)
    assert reused is not None
    assert {entry.uid: entry.measures.work_s for entry in reused} == {"clean": 500, "days": 210.0}
    (newest,) = (entry for entry in recorded.state.retained[-1].states if entry.uid == "days")
    assert newest.parts == PartsProgress(done=3, total=3, kept_s=210.0)
    assert summary_table.summarize(recorded.state, run).saved_s == 710.0
