"""Whether a loop goes on after its finished turns, or begins anew."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.protocol.metadata import LoopDetail, StateSnapshot, digest_of_stages
from airflow_checkpoint_provider.spark.loops.resuming import why_anew
from airflow_checkpoint_provider.spark.stages.reuse import StageRequest

BEFORE = {"edges": "state/edges/1-a"}
LOOP = LoopDetail(
    application="old",
    path="state/rank/1-b",
    turns=3,
    earlier_stages=digest_of_stages(BEFORE.values()),
    stage_before="edges",
    writes={"history": 4},
    writes_before={"history": 1},
)


def request(before: dict[str, str], application: str = "old") -> StageRequest:
    held = StateSnapshot(uid="rank", kind="loop", run="day-1", value={"turns": 3}, loop=LOOP)
    return StageRequest(application, None, True, before, "rank", {"rank": held})


def test_loop_goes_on_after_the_same_stages_and_writes() -> None:
    assert why_anew(LOOP, request(BEFORE), {"history": 1}, None) == ""
    assert why_anew(LOOP, request(BEFORE, "new"), {"history": 1}, None) == ""


def test_loop_begins_anew_on_a_stage_that_was_computed_again() -> None:
    why = why_anew(LOOP, request({"edges": "state/edges/2-x"}), {"history": 1}, None)
    assert why == "stage 'edges' before it was computed again"


def test_loop_begins_anew_after_another_number_of_writes() -> None:
    assert why_anew(LOOP, request(BEFORE), {"history": 2, "other": 1}, None) == (
        "the script now writes 2 times to sink 'history' before it, and wrote 1 times"
    )
    assert "writes 0 times" in why_anew(LOOP, request(BEFORE), {}, None)


def test_changed_application_begins_anew_after_a_loop_that_was_left_by_break() -> None:
    """Before the turns were run, or now: also if the script has that loop no longer."""
    broken = replace(LOOP, broken_off="clean")
    for loop, now in ((LOOP, "clean"), (broken, None), (broken, "clean")):
        why = why_anew(loop, request(BEFORE, "new"), {"history": 1}, now)
        assert (
            why
            == "loop 'clean' before it ends by break, so the changed script may come here with other rows and values"
        )
        assert why_anew(loop, request(BEFORE), {"history": 1}, now) == ""


def test_loop_begins_anew_if_a_write_before_it_takes_the_place_of_its_rows() -> None:
    why = why_anew(LOOP, request(BEFORE), {"history": 1}, None, overtaken="report")
    assert why == "a write to sink 'report' before it is done again, and takes the place of what its turns have written"
