"""The decision to reuse a stage: the table of docs/write/stages.md, row by row. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.metadata import StageDetail, StateSnapshot, digest_of_stages
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.stages.plan import Plan
from airflow_checkpoint_provider.spark.stages.reuse import (
    INPUTS,
    StageRequest,
    Verdict,
    changed_input,
    decide_inputs,
    decide_reuse,
    reuse_without_plan,
)

SAME, OTHER = "same", "other"


def by_uid(*stages: StateSnapshot) -> dict[str, StateSnapshot]:
    return {stage.uid: stage for stage in stages}


BEFORE = {"clean": "state/clean/1-aa", "named": "state/named/1-bb"}
RECOMPUTED = {**BEFORE, "clean": "state/clean/2-cc"}


def request(
    application: str = SAME, handed_out: dict[str, str] = BEFORE, *, version: str | None = None, function: bool = False
) -> StageRequest:
    return StageRequest(application, version, function, handed_out, "report", SNAPSHOTS)


def plan(digest: str = SAME, *, python: bool = False, local_rows: bool = False, path: str = "in") -> Plan:
    leaves = ({"leaf": "LogicalRelation", "paths": [path]},)
    return Plan(
        digest=digest, read=path, text="", leaves=leaves, python=python, local_rows=local_rows, inputs=(), sorted=False
    )


STORED = StageDetail(
    plan=SAME, inputs=plan().read, python=False, application=SAME, schema="{}", codec="lz4_raw",
    earlier_stages=digest_of_stages(BEFORE.values()), stage_before="named",
)  # fmt: skip
VERSIONED = replace(STORED, version="1")


def stored(path: str, before: dict[str, str]) -> StateSnapshot:
    """Return a stage as the attempt that wrote ``path`` stored it after other stages."""
    detail = replace(
        STORED, earlier_stages=digest_of_stages(before.values()), stage_before=next(reversed(before), None)
    )
    return StateSnapshot(uid=path.split("/")[1], kind="stage", run="r", file_sets=(FileSet(path=path),), stage=detail)


SNAPSHOTS = by_uid(
    stored("state/clean/1-aa", {}), stored("state/named/1-bb", {"clean": BEFORE["clean"]}), stored("state/report/1-cc", BEFORE)
)  # fmt: skip


def judged(stored: StageDetail, requested: StageRequest, built: Plan) -> Verdict:
    return decide_reuse(stored, requested, built, lambda: "`1` → `2`")


HINT = ". If it is a time that changes in each try, use job.started_at"
KEEP = ', so equal rows cannot be proved. To keep them next time, set version="1"'


@pytest.mark.parametrize(
    ("stored", "requested", "built", "why"),
    [
        pytest.param(STORED, request(), plan(), "", id="same application, same plan"),
        pytest.param(STORED, request(), plan(python=True), "", id="same application, same plan with Python, same before"),
        pytest.param(STORED, request(), plan(local_rows=True), "", id="same application, same plan with local rows, same before"),
        pytest.param(STORED, request(OTHER), plan(), "application changed, this stage did not", id="changed application, same plan"),
        pytest.param(STORED, request(OTHER, function=True), plan(), "application changed, this stage did not",
                     id="changed application, a function that builds the same plan"),
        pytest.param(STORED, request(handed_out=RECOMPUTED), plan(), "", id="a plan that does not read the stage that was recomputed"),
        pytest.param(STORED, request(OTHER, RECOMPUTED), plan(), "application changed, this stage did not",
                     id="changed application, a plan that does not read the stage that was recomputed"),
        pytest.param(VERSIONED, request(version="1"), plan(), "", id="same application, same version, same plan"),
        pytest.param(VERSIONED, request(OTHER, version="1"), plan(python=True), "application changed, version='1' is the same",
                     id="changed application, same version, same plan with Python"),
        pytest.param(VERSIONED, request(OTHER, version="1"), plan(OTHER), "application changed, version='1' is the same",
                     id="changed application, same version: the author decides about the application"),
        pytest.param(VERSIONED, request(OTHER, RECOMPUTED, version="1", function=True), plan(),
                     "application changed, version='1' is the same", id="a function with a version that builds the same plan"),
    ],
)  # fmt: skip
def test_stage_is_reused_if_its_plan_or_version_proves_it(
    stored: StageDetail, requested: StageRequest, built: Plan, why: str
) -> None:
    assert judged(stored, requested, built) == Verdict(True, why)


@pytest.mark.parametrize(
    ("stored", "requested", "built", "why"),
    [
        pytest.param(STORED, request(), plan(OTHER), f"its plan changed: `1` → `2`{HINT}", id="same application, the plan differs"),
        pytest.param(VERSIONED, request(version="1"), plan(OTHER), f"its plan changed: `1` → `2`{HINT}",
                     id="same application, same version, the plan differs"),
        pytest.param(STORED, request(OTHER), plan(OTHER), "its plan changed: `1` → `2`", id="changed application, the plan differs"),
        pytest.param(STORED, request(OTHER), plan(python=True), f"the application changed and its plan calls Python or other code{KEEP}",
                     id="changed application, same plan with Python"),
        pytest.param(STORED, request(OTHER), plan(local_rows=True), f"the application changed and its plan holds rows of the driver{KEEP}",
                     id="changed application, same plan with local rows"),
        pytest.param(VERSIONED, request(OTHER, version="1"), plan(OTHER, path="elsewhere"), "its plan changed: `1` → `2`",
                     id="changed application, same version, another input"),
        pytest.param(VERSIONED, request(OTHER, version="2"), plan(), "its version changed: '1' → '2'", id="another version"),
        pytest.param(VERSIONED, request(version="2"), plan(), "its version changed: '1' → '2'", id="another version of the same application"),
        pytest.param(STORED, request(OTHER, version="1"), plan(), "its version changed: None → '1'", id="a version for the first time"),
        pytest.param(STORED, request(handed_out=RECOMPUTED), plan(python=True),
                     "its plan calls Python or other code, and stage 'clean' before it was computed again", id="Python after another input"),
        pytest.param(STORED, request(handed_out=RECOMPUTED, function=True), plan(python=True),
                     "its plan calls Python or other code, and stage 'clean' before it was computed again", id="a function after another input"),
        pytest.param(STORED, request(handed_out=RECOMPUTED), plan(local_rows=True),
                     "its plan holds rows of the driver, and stage 'clean' before it was computed again", id="local rows after another input"),
        pytest.param(VERSIONED, request(OTHER, RECOMPUTED, version="1"), plan(),
                     "version= was given, and stage 'clean' before it was computed again", id="a version decides about no input"),
        pytest.param(VERSIONED, request(OTHER, RECOMPUTED, version="1", function=True), plan(OTHER), "its plan changed: `1` → `2`",
                     id="a function's version decides about no input"),
        pytest.param(STORED, request(handed_out=RECOMPUTED), plan(OTHER), "its plan changed: `1` → `2`",
                     id="an input computed again is no literal that moves"),
        pytest.param(STORED, request(handed_out={"clean": BEFORE["clean"]}), plan(python=True),
                     "its plan calls Python or other code, and stage 'named' no longer comes before it", id="a stage less before it"),
        pytest.param(STORED, request(handed_out={**BEFORE, "new": "state/new/2-dd"}), plan(python=True),
                     "its plan calls Python or other code, and stage 'new' now comes before it", id="a stage more before it"),
    ],
)  # fmt: skip
def test_stage_is_recomputed_with_the_reason(
    stored: StageDetail, requested: StageRequest, built: Plan, why: str
) -> None:
    assert judged(stored, requested, built) == Verdict(False, why)


@pytest.mark.parametrize(
    ("stored", "requested", "reuse"),
    [
        pytest.param(STORED, request(), True, id="same application, same before"),
        pytest.param(STORED, request(OTHER), False, id="changed application"),
        pytest.param(STORED, request(handed_out=RECOMPUTED), False, id="an input computed again"),
        pytest.param(VERSIONED, request(OTHER, version="1"), False, id="changed application: its inputs are looked at"),
        pytest.param(
            VERSIONED, request(OTHER, RECOMPUTED, version="1"), False, id="same version, an input computed again"
        ),
        pytest.param(VERSIONED, request(version="2"), False, id="another version"),
        pytest.param(VERSIONED, request(), False, id="a version no longer given"),
    ],
)
def test_function_is_not_called_if_its_rows_are_reused(
    stored: StageDetail, requested: StageRequest, reuse: bool
) -> None:
    """What is refused here is built and judged by its plan."""
    assert reuse_without_plan(stored, replace(requested, function=True)).reuse is reuse


Z, A1, A2, B1, B2 = "state/z/2-zz", "state/a/1-aa", "state/a/2-aa", "state/b/1-bb", "state/b/2-bb"


@pytest.mark.parametrize(
    ("snapshots", "handed_out", "why"),
    [
        # An attempt before this one computed 'a' again, and died after it
        pytest.param([stored(A2, {}), stored(B1, {"a": A1})], {"a": A2}, "stage 'a' before it was computed again",
                     id="in an attempt between"),
        pytest.param([stored(A1, {}), stored(B1, {"a": A1, "z": "state/z/1-zz"})], {"a": A1},
                     "stage 'z' no longer comes before it", id="it is not even stored any more"),
        # It put 'z' before them and used 'a' again, whose record is that of the first attempt
        pytest.param([stored(Z, {}), stored(A1, {}), stored(B2, {"z": Z, "a": A1})], {"a": A1}, "other stages came before it",
                     id="which is no longer known"),
        pytest.param([stored(Z, {}), stored(A1, {}), stored(B2, {"z": Z, "a": A1})], {"z": Z, "a": A1}, "", id="the same"),
        pytest.param([stored(Z, {}), stored(A1, {}), stored(B2, {"z": Z, "a": A1})], {"a": A1, "z": Z}, "", id="in another order"),
    ],
)  # fmt: skip
def test_line_names_the_stage_that_moved_also_after_several_attempts(
    snapshots: list[StateSnapshot], handed_out: dict[str, str], why: str
) -> None:
    states = by_uid(*snapshots)
    detail = states["b"].stage
    assert detail
    assert changed_input(detail, StageRequest(SAME, None, False, handed_out, "b", states)) == why


def test_stored_plan_is_read_only_for_the_log_line() -> None:
    def difference() -> str:
        raise AssertionError("reads a file")

    assert decide_reuse(STORED, request(), plan(), difference).reuse
    assert not decide_reuse(STORED, request(OTHER), plan(python=True), difference).reuse


# -- what Spark has listed ---------------------------------------------------------------------------------------------

LISTED = replace(STORED, listed="then", generation=1)
AGAIN = replace(request(), generation=1)
MOVED = "1 file new"
COMPARE_HINT = f'{MOVED}. To compute it again when its inputs move, write inputs="compare"'
KEEP_HINT = f'its inputs moved: {MOVED}. To keep its rows, write inputs="keep"'


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        pytest.param(AGAIN, Verdict(True, moved=COMPARE_HINT), id="an automatic retry keeps the rows"),
        pytest.param(replace(AGAIN, application=OTHER), Verdict(False, f"the application changed, and {KEEP_HINT}"), id="changed application"),
        pytest.param(replace(AGAIN, generation=2), Verdict(False, f"the task was cleared, and {KEEP_HINT}"), id="cleared"),
        pytest.param(replace(AGAIN, inputs="compare"), Verdict(False, f"its inputs moved: {MOVED}"), id="compare"),
        pytest.param(replace(AGAIN, inputs="keep", application=OTHER, generation=2), Verdict(True, moved=f'{MOVED}. inputs="keep" is set'),
                     id="keep, whatever else changed"),
        pytest.param(replace(AGAIN, version="1", application=OTHER), Verdict(False, f"the application changed, and {KEEP_HINT}"),
                     id="a version decides about no input"),
    ],
)  # fmt: skip
def test_moved_inputs_are_kept_or_computed_again(asked: StageRequest, verdict: Verdict) -> None:
    assert decide_inputs(LISTED, asked, "now", Verdict(True), lambda: MOVED) == verdict


@pytest.mark.parametrize("words", INPUTS)
def test_list_is_read_only_if_inputs_moved(words: str) -> None:
    def moved() -> str:
        raise AssertionError("reads a file")

    kept = Verdict(True, "application changed, this stage did not")
    asked = replace(AGAIN, application=OTHER, generation=2, inputs=words)
    assert decide_inputs(LISTED, asked, "then", kept, moved) == kept
    refused = Verdict(False, "its plan changed")
    assert decide_inputs(LISTED, asked, "now", refused, moved) == refused


def test_function_is_called_to_look_only_if_the_author_says_so() -> None:
    calls = {
        words: not reuse_without_plan(STORED, replace(request(), function=True, inputs=words)).reuse for words in INPUTS
    }
    assert calls == {"auto": False, "compare": True, "keep": False}


def test_a_stage_is_described_in_as_many_bytes_whatever_comes_before_it() -> None:
    """Else a checkpoint grows with the square of the number of its stages."""
    before: dict[str, str] = {}
    sizes = set()
    for number in range(1000, 1080):
        path = f"state/day-{number}/1-aa"
        sizes.add(len(canonical(stored(path, before).to_json())))
        before[path.split("/")[1]] = path
    assert len(sizes) <= 2, "only the first stage has none before it"
