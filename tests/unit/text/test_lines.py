"""Log lines of one stage, one checkpoint, one end. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.metadata import SinkVersion, StateEntry
from airflow_checkpoint_provider.text import messages, query_messages, restore_story, state_messages, summary_table
from tests.support.garbage import retire
from tests.support.recorded import Recorded, at, second_attempt, three_stages
from tests.unit.text.conftest import Golden


def test_lines_of_reused_and_recomputed_stages(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    clean = recorded.states["clean"]
    golden(
        "stages",
        [
            state_messages.stage_reused(clean),
            state_messages.stage_reused(clean, "application changed, this stage did not"),
            state_messages.stage_reused(clean, unseen="JDBCRelation, an RDD"),
            state_messages.inputs_moved(
                "clean",
                '1 file new in s3a://shop/landing. To compute it again when its inputs move, write inputs="compare"',
            ),
            state_messages.stage_recomputed(
                "clean",
                "its plan changed: day >= 2026-11-20 → 2026-11-21. If it is a time that changes in each try, use job.started_at",
            ),
            state_messages.stage_recomputed(
                "clean",
                "the application changed and its plan calls Python or other code, so equal rows cannot be proved.",
            ),
            state_messages.stage_sorted("clean"),
        ],
    )


def test_lines_of_values_and_metrics_of_reused_stages(golden: Golden) -> None:
    golden(
        "values",
        [
            state_messages.value_differs("rows", 10, 1, "stage 'clean'", 1, "the application changed"),
            state_messages.value_differs("rows", 10, None, "stage 'clean'", 1, "a stage before it was computed again"),
            state_messages.value_differs("seen", None, ["x" * 40, "y" * 40], "stage 'clean'", 1, ""),
            state_messages.metrics_not_kept("clean", "quality", "they are too large"),
            state_messages.metrics_not_kept("clean", "", "JSON cannot hold their types"),
            state_messages.metrics_missing("clean", "quality", "its function was not called"),
            state_messages.metrics_missing("clean", "", "it was stored without these metrics"),
        ],
    )


def test_lines_of_the_application_digest(golden: Golden) -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    run, attempt = recorded.state.runs[0], recorded.state.attempts[0]
    stored = replace(
        attempt, application_parts={"the script": "a", "dates.py": "b", "old.py": "c", "the arguments": "d"}
    )
    parts = {"the script": "a", "dates.py": "changed", "new.py": "e", "the arguments": "changed"}
    golden(
        "application",
        [
            state_messages.application_line("digest", parts, None, run),
            state_messages.application_line("digest", parts, attempt, run),
            state_messages.application_line("another", parts, attempt, run),
            state_messages.application_line("another", parts, stored, run),
            state_messages.application_line("another", {}, stored, run),
        ],
    )


def test_lines_of_computed_imports_name_the_place_and_the_folder() -> None:
    computed, folder = "importlib in helpers/plugins.py", "/srv/jobs"
    for line in (
        state_messages.computed_imports(computed, folder),
        state_messages.too_many_modules(computed, 2000, folder),
    ):
        assert f"({computed})" in line
        assert f"below {folder}" in line


def test_lines_of_a_clear_without_a_code_change(golden: Golden) -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    assert restore_story.cleared_unchanged(recorded.state, 1) == []
    recorded.started("22:10:20", try_number=2)
    assert restore_story.cleared_unchanged(recorded.state, 2) == []
    recorded.started("22:20:20", try_number=3, generation=1)
    golden("cleared_unchanged", restore_story.cleared_unchanged(recorded.state, 3))
    recorded.launched("22:30:20", try_number=4, generation=2)
    recorded.attached("22:30:21", application="a fix")
    assert restore_story.cleared_unchanged(recorded.state, 4) == []


def test_lines_of_completed_checkpoints(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    last, end = (recorded.state.checkpoint(number) for number in (5, 6))
    assert last
    assert end
    golden("completed", [messages.checkpoint_line(last, 6.9), *messages.checkpoint_lines(recorded.state, end)])


def test_lines_of_gated_checkpoints(golden: Golden) -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    number = recorded.coordinator.trigger(Request(token="audit", timeout_s=600.0, gated=True, origin="task"))
    gated = recorded.state.pending
    lines = [messages.gate_reached(gated[0]), messages.gates_awaited(gated)]
    recorded.clock = at("22:12:20")
    recorded.coordinator.abort(number, "expired", phase="finalize", details="nobody finalized it within 600 s")
    golden("gated", [*lines, *messages.aborted(recorded.state, recorded.state.checkpoints[0])])


def test_lines_of_an_expired_checkpoint(golden: Golden) -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.stage("clean", "22:10:00", "22:10:02", work_s=540, kib=4)
    recorded.aborted(
        recorded.triggered("stage 'enrich'", "22:22:00"), "22:32:00", "expired", "no acknowledgement for 10 min"
    )
    (gone,) = recorded.state.with_status("aborted")
    golden("aborted_expired", messages.checkpoint_lines(recorded.state, gone))


def test_start_that_was_completed_after_an_abort_is_not_before_it() -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.aborted(recorded.triggered("stage 'enrich'", "22:22:00"), "22:32:00", "expired")
    recorded.stage("clean", "22:40:00", "22:40:02", work_s=540, kib=4)
    (gone,) = recorded.state.with_status("aborted")
    (effect,) = (line for line in messages.aborted(recorded.state, gone) if "effect" in line)
    assert effect.strip().endswith("the next attempt starts from chk-2. Failures in a row: 0")


def test_lines_of_a_checkpoint_aborted_by_the_store(golden: Golden) -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    for minute in (10, 20):
        recorded.aborted(
            recorded.triggered("checkpoint()", f"22:{minute}:00"), f"22:{minute}:09", "store failed", "503"
        )
    golden("aborted_by_store", messages.aborted(recorded.state, recorded.state.checkpoints[-1]))


def test_lines_of_a_declined_checkpoint(golden: Golden) -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    words = "'source': snapshot_state: OSError: no position; the next barrier asks it again"
    recorded.aborted(recorded.triggered("stage 'clean'", "22:10:00"), "22:10:01", "declined", words)
    golden("aborted_declined", messages.aborted(recorded.state, recorded.state.checkpoints[-1]))


def test_lines_of_a_checkpoint_of_a_replaced_attempt(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.started("03:02:10", try_number=2)
    (gone,) = recorded.state.with_status("aborted")
    golden("aborted_replaced", messages.aborted(recorded.state, gone))


def test_lines_of_an_unprotected_job(golden: Golden) -> None:
    last = "chk-31: cannot write file:///lake/ckp: No space left on device"
    golden(
        "not_protected",
        [messages.not_protected(last, 3, 47 * 60, Point(id=28)), messages.not_protected(last, 1, 30, None)],
    )


def test_lines_of_an_outcome_that_was_read_back(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    golden("outcome_known", [messages.outcome_known(recorded.state.checkpoints[-2])])


def test_lines_of_a_replaced_attempt(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.launched("03:02:10", try_number=2)
    planned = messages.fenced(recorded.state, 1, "stage 'delays'")
    recorded.attached("03:02:19")
    golden("fenced", [*planned, "", *messages.fenced(recorded.state, 1, "stage 'delays'")])


def test_lines_of_an_attempt_declared_lost(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("03:00:00", "lost", None, "task")
    golden("fenced_lost", messages.fenced(recorded.state, 1, "the script's own code"))


def test_lines_of_deleted_checkpoints(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    kept = [summary_table.deleted_line(count, recorded.state) for count in (0, 1)]
    recorded.clock = at("03:44:20")
    gone = retire(recorded.coordinator, recorded.clock)
    golden("deleted", [*kept, summary_table.deleted_line(len(gone), recorded.state)])


@pytest.mark.parametrize("paced", [{"interval": "1 s"}, {"min_pause": "5 min"}, {"interval": 60, "min_pause": 90}])
def test_interval_and_pause_without_effect_are_logged(paced: dict[str, Any]) -> None:
    (line,) = state_messages.not_paced(CheckpointConfig(**paced))
    assert line.startswith(
        "every end of a stage is a checkpoint: interval and min_pause pace only streaming queries and loops"
    )
    assert line.endswith("[CKP123]")


def test_line_of_a_query_says_which_batch_is_next() -> None:
    newest = Checkpoint(
        id=97, epochs=(1,), branch=0, plan=("",), request=Request(token="t"), timeout_s=1.0, triggered_at=at("01:00:00")
    )
    lines = [
        query_messages.begins("orders", begun, committed, checkpoint, older=1)
        for begun, committed, checkpoint in ((-1, -1, None), (412, 412, newest), (413, 412, newest), (0, -1, None))
    ]
    assert lines[0] == "query 'orders' starts from its beginning  [CKP125]"
    assert lines[1] == "query 'orders' continues after batch 412. Newest checkpoint: chk-97 (not needed)  [CKP125]"
    assert lines[2].startswith("query 'orders' repeats batch 413, which an earlier attempt began and did not commit")
    assert lines[2].endswith("it reads the same offsets. Newest checkpoint: chk-97 (not needed)  [CKP125]")
    assert lines[3].endswith("it reads the same offsets  [CKP125]")
    often = query_messages.begins("orders", 413, 412, None, older=12)
    assert "Until it is committed, 12 locations of earlier attempts stay, each with a copy of the state" in often
    behind = "query 'orders' continues after batch 7 of chk-3"
    again = "batch 8 had begun, and runs again with the same offsets"
    assert query_messages.restored("orders", 7, 7, "chk-3") == f"{behind}  [CKP125]"
    assert query_messages.restored("orders", 7, 8, "chk-3") == f"{behind}; {again}  [CKP125]"


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"kind": "stage"}, "stage 'clean'"),
        ({"kind": "query", "batch": 7}, "batch 7"),
        ({"kind": "query", "batch": -1}, "before batch 0"),
        ({"kind": "sink", "sink": SinkVersion(version=3, target="/out", transactions=1)}, "1 write to /out"),
        (
            {"kind": "sink", "sink": SinkVersion(version=3, target="/out", gated=True, transactions=2)},
            "2 writes to /out, gated",
        ),
    ],
)
def test_state_is_told_up_to_where_a_checkpoint_holds_it(held: dict[str, Any], told: str) -> None:
    assert state_messages.reached(StateEntry(uid="clean", run="A", **held), "stage 'clean'") == told


def test_default_interval_and_pause_are_not_logged() -> None:
    assert state_messages.not_paced(CheckpointConfig(timeout="1 min", interval="10 min")) == []
