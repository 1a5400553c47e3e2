"""Tests of what the journal knows of sinks after checkpoints were completed and confirmed. Run anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import launch_transitions, sink_transitions
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint, Completion
from airflow_checkpoint_provider.protocol.launch_records import Branch
from airflow_checkpoint_provider.protocol.metadata import SINK, SinkVersion, StateEntry
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transactions import SinkRecord


def checkpoint(version: int, *, epoch: int = 1, gated_sink: bool = False, gated: bool = False) -> Checkpoint:
    """Return a completed checkpoint that holds the sink ``report`` up to ``version``."""
    held = SinkVersion(version=version, target="/data/report", gated=gated_sink, transactions=version)
    entry = StateEntry(uid="report", kind=SINK, run="r", sink=held)
    done = Completion(at="2026-11-22T10:00:00Z", n=9, digest="d", bytes=0, metadata_bytes=1, states=(entry,))
    return Checkpoint(
        id=version + 1,
        epochs=(epoch,),
        branch=0,
        plan=("",),
        request=e.Request(token="t", gated=gated),
        timeout_s=60.0,
        triggered_at="2026-11-22T10:00:00Z",
        completion=done,
    )


def entry_of(checkpoint: Checkpoint) -> StateEntry:
    assert checkpoint.completion
    return checkpoint.completion.states[0]


def holding(entry: StateEntry, *, epoch: int) -> Checkpoint:
    made = checkpoint(1, epoch=epoch)
    assert made.completion
    return replace(made, completion=replace(made.completion, states=(entry,)))


def after(state: State, *checkpoints: Checkpoint) -> SinkRecord:
    for each in checkpoints:
        state = sink_transitions.complete(state, each)
    return state.sink("report")


def test_writes_of_a_completed_checkpoint_are_due() -> None:
    found = after(State(), checkpoint(2))
    assert (found.version, found.due, found.due_epoch, found.confirmed, found.uncommitted) == (2, 2, 1, 0, 2)


def test_closed_history_keeps_versions_and_nothing_that_is_due() -> None:
    state = sink_transitions.complete(State(), checkpoint(2))
    state = sink_transitions.complete(sink_transitions.confirm(state, checkpoint(2)), checkpoint(3))
    assert state.sink("report").uncommitted == 1
    (kept,) = sink_transitions.close(state)
    assert kept == SinkRecord(
        uid="report", version=3, due=2, confirmed=2, closed=3, target="/data/report", run="r"
    )  # the run may be cleared, with another name for its sink


def test_confirmed_writes_are_not_due_any_more() -> None:
    state = sink_transitions.complete(State(), checkpoint(2))
    state = sink_transitions.confirm(state, checkpoint(2))
    assert state.sink("report").uncommitted == 0
    assert after(state, checkpoint(3)).uncommitted == 1


def test_checkpoint_that_completes_late_takes_nothing_back() -> None:
    found = after(State(), checkpoint(5, epoch=2), checkpoint(3, epoch=1))
    assert (found.version, found.epoch, found.due, found.due_epoch) == (5, 2, 5, 2)


def test_run_that_only_opens_a_sink_has_not_written() -> None:
    opened = replace(entry_of(checkpoint(2)), run="next", sink=SinkVersion(version=2, target="/data/next"))
    found = after(State(), checkpoint(2), holding(opened, epoch=2))
    assert (found.run, found.target, found.epoch) == ("r", "/data/report", 2)
    wrote = replace(opened, sink=SinkVersion(version=3, target="/data/next"))
    found = after(State(), checkpoint(2), holding(wrote, epoch=2))
    assert (found.run, found.target) == ("next", "/data/next")


def test_only_a_gated_checkpoint_publishes_a_gated_sink() -> None:
    automatic, gated = checkpoint(4, gated_sink=True), checkpoint(2, gated_sink=True, gated=True)
    assert (after(State(), automatic).version, after(State(), automatic).due) == (4, 0)
    assert (after(State(), automatic, gated).version, after(State(), automatic, gated).due) == (4, 2)


def test_confirmation_of_an_ungated_checkpoint_confirms_nothing_of_a_gated_sink() -> None:
    automatic = checkpoint(4, gated_sink=True)
    state = sink_transitions.confirm(sink_transitions.complete(State(), automatic), automatic)
    assert state.sink("report").confirmed == 0


def test_checkpoint_without_sinks_changes_nothing() -> None:
    held = checkpoint(2)
    assert held.completion
    bare = replace(held, completion=replace(held.completion, states=()))
    assert sink_transitions.complete(State(), bare).sinks == ()


def test_numbers_that_the_script_writes_with_are_not_due() -> None:
    numbers = replace(entry_of(checkpoint(2)), sink=SinkVersion(version=2))
    found = after(State(), holding(numbers, epoch=1))
    assert (found.version, found.due, found.uncommitted) == (2, 0, 0)


# -- going back --------------------------------------------------------------------------------------------------------


def on_branch(number: int, version: int, *, confirmed: bool = False, gated: bool = False) -> Checkpoint:
    made = checkpoint(version, gated_sink=gated)
    assert made.completion
    return replace(made, branch=number, completion=replace(made.completion, commits_confirmed=confirmed))


def two_branches(*, gated: bool = False) -> State:
    """Return a job that went back from version 2 to version 1, and has written version 3 since."""
    first, second = on_branch(0, 1, confirmed=True, gated=gated), on_branch(0, 2, gated=gated)
    third = on_branch(1, 3, confirmed=True, gated=gated)
    report = SinkRecord(uid="report", version=3, due=3, due_epoch=3, confirmed=3)
    branch = Branch(number=1, base=e.Point(id=first.id), rewind_sink=True)
    return State(branch=branch, checkpoints=(first, second, third), sinks=(report,))


def test_what_another_branch_has_published_says_nothing_about_the_writes_of_a_restore_point() -> None:
    (report,) = sink_transitions.go_back(two_branches(), e.Point(id=3))
    assert (report.version, report.due, report.confirmed) == (3, 2, 1)


def test_gate_of_another_branch_publishes_nothing_of_a_restore_point() -> None:
    (report,) = sink_transitions.go_back(two_branches(gated=True), e.Point(id=3))
    assert (report.version, report.due, report.confirmed) == (3, 0, 0)


def test_way_back_on_one_branch_forgets_nothing() -> None:
    state = two_branches()
    assert sink_transitions.go_back(state, e.Point(id=4)) == state.sinks


@pytest.mark.parametrize(
    "base", [None, e.Point(id=3, pointer="s3://lake/savepoint")], ids=["nothing", "another history"]
)
def test_nothing_is_known_of_the_writes_of_another_history(base: e.Point | None) -> None:
    (report,) = sink_transitions.go_back(two_branches(), base)
    assert (report.version, report.due, report.confirmed) == (3, 0, 0)


def test_attempt_that_takes_rows_out_leaves_their_versions_in_the_journal() -> None:
    state = two_branches()
    assert sink_transitions.take_out(state) == state.sinks, "the branch has checkpoints of its own"
    begun = replace(state, branch=Branch(number=2, base=e.Point(id=3), rewind_sink=True))
    (report,) = sink_transitions.take_out(begun)
    assert (report.rewound_after, report.rewound) == (2, 3)
    older = replace(state, branch=Branch(number=3, base=e.Point(id=2), rewind_sink=True), sinks=(report,))
    (report,) = sink_transitions.take_out(older)
    assert (report.rewound_after, report.rewound) == (1, 3)
    kept = replace(begun, branch=replace(begun.branch, rewind_sink=False))
    assert sink_transitions.take_out(kept) == state.sinks


# -- other names -------------------------------------------------------------------------------------------------------

REPORT = SinkRecord(uid="report", version=3, due=2, confirmed=1, target="/data/report", run="r")


def by_name(sinks: tuple[SinkRecord, ...]) -> dict[str, SinkRecord]:
    return {sink.uid: sink for sink in sinks}


def test_branch_that_renames_a_sink_keeps_what_is_known_of_it_under_both_names() -> None:
    base = checkpoint(3)
    state = State(checkpoints=(base,), sinks=(REPORT,))
    opened = e.BranchOpened(
        branch=1, application="", base=e.Point(id=base.id), by="ann", reason="", token=e.Token(dag="d", run="r", task="t"),
        id_floor=9, rename={"report": "rapport"},
    )  # fmt: skip
    found = by_name(launch_transitions.open_branch(state, opened).sinks)
    assert found["rapport"] == replace(REPORT, uid="rapport", also=("report",))
    assert found["report"] == replace(REPORT, due=1, also=("rapport",)), "what is due is due once"


def test_sink_that_is_renamed_twice_knows_all_its_names() -> None:
    found = by_name(sink_transitions.rename(sink_transitions.rename([REPORT], {"report": "b"}), {"b": "c"}))
    assert {uid: sink.also for uid, sink in found.items()} == {
        "b": ("c", "report"), "c": ("b", "report"), "report": ("b", "c"),
    }  # fmt: skip


def test_sinks_that_exchange_their_names_take_their_records_with_them() -> None:
    other = SinkRecord(uid="other", version=7, target="/data/other")
    found = by_name(sink_transitions.rename([REPORT, other], {"report": "other", "other": "report"}))
    assert {uid: sink.target for uid, sink in found.items()} == {"report": "/data/other", "other": "/data/report"}
    assert {sink.version for sink in found.values()} == {7}, "no number is used twice"


def test_sink_takes_a_name_that_was_another_sinks_before() -> None:
    before = SinkRecord(uid="rapport", version=9, closed=4, target="/data/old")
    found = by_name(sink_transitions.rename([before, REPORT], {"report": "rapport", "unknown": "x"}))
    assert found["rapport"] == replace(REPORT, uid="rapport", version=9, closed=4, also=("report",))
    assert "x" not in found


def test_target_of_numbers_is_their_new_name() -> None:
    numbers = SinkRecord(uid="orders", version=1, target="orders")
    assert by_name(sink_transitions.rename([numbers], {"orders": "bills"}))["bills"].target == "bills"
