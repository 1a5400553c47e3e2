"""What the snapshots and the branches of an Iceberg table say about transactions, without Spark. Runs anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import CommitStateUnknown, Damaged
from airflow_checkpoint_provider.sinks.log import ABORT, COMMIT, RunOfSink
from airflow_checkpoint_provider.spark.queries.sinks.iceberg_table import IcebergMetadata, IcebergSnapshot
from airflow_checkpoint_provider.spark.sinks.iceberg import OpenIcebergSink
from airflow_checkpoint_provider.spark.sinks.iceberg_branches import (
    NOTE,
    PUBLISHED_AS,
    STAGED_AS,
    Branches,
    branch_of,
    note,
    transaction_in,
)
from airflow_checkpoint_provider.spark.sinks.tables import TableEntry

NAME, OTHER = "1-0000000000000001", "1-0000000000000002"
BY = RunOfSink(history="file:///lake/monday", run="monday", uid="report")
COMMITS = note(TableEntry(kind=COMMIT, by=BY, transactions=(NAME,), version=1))
ABORTS = note(TableEntry(kind=ABORT, by=BY, transactions=(NAME, OTHER)))
ROWS = {"added-data-files": "1"}


def table(
    *snapshots: tuple[int, int | None, Mapping[str, str]],
    current: int | None = None,
    branches: Mapping[str, int] | None = None,
    was_current: tuple[int, ...] = (),
    properties: Mapping[str, str] | None = None,
) -> Branches:
    """A table of these snapshots: number, number of the one before, summary."""
    known = {number: IcebergSnapshot(number, before, 5, summary) for number, before, summary in snapshots}
    once = frozenset({*was_current, *([current] if current else [])})
    return Branches("lake.rows", IcebergMetadata(current, known, branches or {}, once, properties or {}))


def staged(current: int | None = 1) -> Branches:
    """A table with a row, and a branch that holds a transaction: snapshots 2, its note, and 3, its rows."""
    noted, written = (2, 1, {NOTE: COMMITS}), (3, 2, {STAGED_AS: COMMITS})
    return table((1, None, ROWS), noted, written, (4, 1, ROWS), current=current, branches={branch_of(NAME): 3})


def test_transaction_with_a_branch_is_open() -> None:
    found = staged()
    assert found.is_open(NAME)
    assert found.decision(NAME) is None
    assert found.fate(NAME, 1) is None
    assert found.holds_rows(branch_of(NAME))
    assert [*found.waiting()] == [NAME]
    assert found.entries() == []


def test_branch_continues_only_the_snapshot_from_which_it_was_made() -> None:
    assert staged().continues_main(branch_of(NAME))
    assert not staged(current=4).continues_main(branch_of(NAME))


def test_main_branch_that_a_person_rolled_back_is_not_continued() -> None:
    """The branch holds the snapshot that was rolled back."""
    snapshots = [(1, None, ROWS), (2, 1, ROWS), (3, 2, {NOTE: COMMITS}), (4, 3, {STAGED_AS: COMMITS})]
    rolled_back = table(*snapshots, current=1, branches={branch_of(NAME): 4}, was_current=(2,))
    assert not rolled_back.continues_main(branch_of(NAME))


def test_branch_whose_note_has_expired_is_not_continued() -> None:
    found = table((1, None, ROWS), (3, 2, {STAGED_AS: COMMITS}), current=1, branches={branch_of(NAME): 3})
    assert not found.continues_main(branch_of(NAME))


@pytest.mark.parametrize(
    ("snapshots", "current", "was_current", "committed"),
    [
        pytest.param([(2, 1, {NOTE: COMMITS}), (3, 2, {STAGED_AS: COMMITS})], 3, (), True, id="taken as it is"),
        pytest.param([(3, 2, {STAGED_AS: COMMITS})], 1, (3,), True, id="taken, and rolled back by a person"),
        pytest.param([(5, 1, {PUBLISHED_AS: COMMITS, "source-snapshot-id": "3"})], 5, (), True, id="picked"),
        pytest.param([(3, 2, {STAGED_AS: COMMITS}), (5, 1, {NOTE: ABORTS})], 5, (), False, id="aborted"),
        pytest.param([(5, 1, {NOTE: ABORTS}), (6, 5, ROWS)], 6, (), False, id="aborted, and others went on"),
    ],
)
def test_decision_is_found(
    snapshots: list[tuple[int, int | None, Mapping[str, str]]],
    current: int,
    was_current: tuple[int, ...],
    committed: bool,
) -> None:
    found = table((1, None, ROWS), *snapshots, current=current, was_current=was_current)
    assert found.fate(NAME, 1) is committed
    assert found.decision(NAME) is committed
    assert [entry.transactions for entry in found.entries()] == ([(NAME,)] if committed and not was_current else [])


def test_rows_that_nobody_published_and_whose_branch_is_gone_are_lost() -> None:
    with pytest.raises(Damaged, match="Somebody removed it"):
        table((1, None, ROWS), (3, 1, {STAGED_AS: COMMITS}), current=1).fate(NAME, 1)
    with pytest.raises(Damaged, match="Somebody removed it"):
        table().fate(NAME, 0)


@pytest.mark.parametrize("base", [1, 0])
def test_decision_that_may_have_expired_is_unknown(base: int) -> None:
    with pytest.raises(CommitStateUnknown, match="snapshots have expired"):
        table((7, 6, ROWS), current=7).fate(NAME, base)


def test_notes_of_others_do_not_count() -> None:
    theirs = table((1, None, {STAGED_AS: "audit-7"}), (2, 1, {PUBLISHED_AS: '{"v": 1}'}), current=2)
    assert theirs.entries() == []
    assert theirs.decision(NAME) is None
    with pytest.raises(Damaged, match="the summary of snapshot 1 of lake"):
        table((1, None, {NOTE: f"{NOTE} {{}}"}), current=1).entries()


@pytest.mark.parametrize("branch", ["main", "checkpoint_", f"checkpoint_{NAME}_audit", f"x_checkpoint_{NAME}", NAME])
def test_branch_of_somebody_else(branch: str) -> None:
    assert transaction_in(branch) is None


def test_branches_of_one_transaction() -> None:
    second = f"{branch_of(NAME)}_0123abcd"
    found = table((1, None, {STAGED_AS: COMMITS}), branches={second: 1, branch_of(NAME): 1, branch_of(OTHER): 1})
    assert found.of(NAME) == [branch_of(NAME), second]
    assert [*found.waiting()] == [NAME, OTHER]


def test_numbers_of_runs_are_read() -> None:
    found = table(properties={f"{NOTE}.began.x": "4", f"{NOTE}.overwritten-by": "3", "owner": "me"})
    assert (found.begins, found.overwritten_by, found.began(BY)) == ({f"{NOTE}.began.x": 4}, 3, 0)


HISTORY = "jobs/daily/runs/monday"
NOTED = {  # by the version that did not know incarnations, and by this one
    f"{NOTE}.began.53b752597c914b1f": "3",
    f"{NOTE}.began.8e86f7b7a89f17a2": "4",
}


@pytest.mark.parametrize(
    ("root", "incarnation", "began"),
    [
        pytest.param("s3://lake", "1nc", 4, id="its root was moved"),
        pytest.param("file:///lake", "", 3, id="an earlier version"),
        pytest.param("file:///lake", "0ther", 3, id="begun before by an earlier version"),
        pytest.param("s3://lake", "0ther", 0, id="another history"),
    ],
)
def test_run_has_begun_wherever_its_root_is(root: str, incarnation: str, began: int) -> None:
    found = table(properties=NOTED)
    assert found.began(replace(BY, history=f"{root}/{HISTORY}", incarnation=incarnation)) == began
    with pytest.raises(Damaged, match="is no number"):
        _ = table(properties={f"{NOTE}.overwritten-by": "x"}).overwritten_by


@pytest.mark.parametrize(
    ("root", "incarnation", "known"),
    [
        pytest.param("s3://lake", "1nc", True, id="its root was moved"),
        pytest.param("s3://lake", "0ther", False, id="another history"),
        pytest.param("file:///lake", "0ther", True, id="the same run, begun anew"),
        pytest.param("file:///lake", "", True, id="an earlier version"),
    ],
)
def test_history_knows_its_commits_wherever_its_root_is(root: str, incarnation: str, known: bool) -> None:
    wrote = replace(BY, history=f"file:///lake/{HISTORY}", incarnation="1nc")
    commits = note(TableEntry(kind=COMMIT, by=wrote, transactions=(NAME,), version=1))
    found = table((1, None, {STAGED_AS: commits}), current=1)
    by = replace(BY, history=f"{root}/{HISTORY}", incarnation=incarnation)
    opened: Any = SimpleNamespace(_by=by, _writers=by.under(()), _table=SimpleNamespace(read=lambda: found))
    assert [entry.by for entry in OpenIcebergSink.entries(opened)] == ([wrote] if known else [])
