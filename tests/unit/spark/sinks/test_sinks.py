"""What a retry does with the writes that its restore point holds. Runs anywhere."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.assignment import AllowanceOption
from airflow_checkpoint_provider.errors import NonRestoredState, RowsStand, SinkMoved
from airflow_checkpoint_provider.protocol import sink_transitions
from airflow_checkpoint_provider.protocol.metadata import LoopDetail
from airflow_checkpoint_provider.protocol.transactions import Origin, SinkRecord
from airflow_checkpoint_provider.spark import DeltaSink, FileSink, IcebergSink, JdbcSink, OpenSink, Sink
from tests.support.targets import TUESDAY, files_of, name_of, staged
from tests.unit.spark.sinks.attempts import UID, Attempts, OpenFolder, write

CaptureFixture = pytest.CaptureFixture[str]


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(monkeypatch)


@pytest.mark.parametrize("later", [["final"], ["final", "corrected"], ["other"]])
def test_overwrite_that_is_done_again_takes_no_later_one_away(
    attempts: Attempts, later: list[str], capsys: CaptureFixture
) -> None:
    """The later ones are done again: what they have written went with the first overwrite."""
    attempts.run("quick", "final", application="first", mode="overwrite")
    attempts.run("quick, corrected", *later, mode="overwrite")
    assert attempts.readers_see == later[-1:]
    said = capsys.readouterr().out
    assert "write 1 of this run is done again: its plan changed" in said
    assert "write 2 of this run (1 row) is not kept: write 1 before it is done again, and takes its place" in said


def test_overwrites_before_the_one_that_is_done_again_are_not(attempts: Attempts, capsys: CaptureFixture) -> None:
    attempts.run("a", "b", "c", application="first", mode="overwrite")
    attempts.run("a", "b2", "c", mode="overwrite")
    assert attempts.readers_see == ["c"]
    assert "write 1 of this run is committed already" in capsys.readouterr().out


def test_append_that_is_done_again_leaves_later_ones_as_they_are(attempts: Attempts, capsys: CaptureFixture) -> None:
    attempts.run("a", "b", application="first")
    attempts.run("a2", "b")
    assert attempts.readers_see == ["a2", "b"]
    assert "write 2 of this run is committed already" in capsys.readouterr().out


def test_overwrites_that_wait_for_a_gate_keep_their_order(attempts: Attempts) -> None:
    for rows in (["quick", "final"], ["quick, corrected", "final"]):
        sinks = attempts.begin()
        state = attempts.open(sinks, mode="overwrite", gated=True)
        for text in rows:
            write(sinks, state, text)
        attempts.checkpoint(sinks, publishes=rows[0] != "quick")
    assert attempts.readers_see == ["final"]


def test_turns_whose_rows_an_earlier_write_takes_are_named(attempts: Attempts) -> None:
    """A loop that has finished them would pass over their writes, and nobody would write their rows again."""
    attempts.run("before", "turn 1", "turn 2", "after", application="first", mode="overwrite")
    sinks = attempts.begin()
    state = attempts.open(sinks, mode="overwrite")
    assert not sinks.overtaken({UID: 1}, {UID: 3})
    write(sinks, state, "before, corrected")
    assert sinks.overtaken({UID: 1}, {UID: 3}) == UID
    assert not sinks.overtaken({UID: 4}, {UID: 6}), "no held write is there"
    assert not sinks.overtaken({}, {"other": 2})


# -- a script that writes less often than an earlier attempt -----------------------------------------------------------


@pytest.mark.parametrize("rows", [["b", "c"], ["a"], ["a", "c"], []])
@pytest.mark.parametrize("times", [1, 2])
def test_rows_that_the_script_has_not_written_are_taken_out(
    attempts: Attempts, rows: list[str], times: int, capsys: CaptureFixture
) -> None:
    attempts.run("a", "b", "c", application="first")
    for _ in range(times):
        attempts.finish(attempts.run(*rows))
    assert attempts.readers_see == rows
    assert capsys.readouterr().out.count("[CKP169]") == 1, "the second time there is nothing to do"


def test_driver_that_dies_before_the_rows_are_taken_out_leaves_it_to_the_next(attempts: Attempts) -> None:
    attempts.run("a", "b", application="first")
    sinks = attempts.run("a")
    attempts.end(sinks)
    attempts.checkpoint(sinks, publishes=False)  # killed here
    assert attempts.readers_see == ["a", "b"]
    attempts.run("a")
    assert attempts.readers_see == ["a"]


@pytest.mark.parametrize("saved", [False, True])
def test_write_that_comes_back_is_done_again(attempts: Attempts, saved: bool) -> None:
    attempts.run("a", "b", application="first")
    sinks = attempts.run("a")
    attempts.end(sinks)
    if saved:
        attempts.checkpoint(sinks)
    attempts.finish(attempts.run("a", "b"))
    assert attempts.readers_see == ["a", "b"]


def test_cleared_run_that_writes_nothing_takes_its_rows_out(attempts: Attempts) -> None:
    attempts.run("errors")
    attempts.held.clear()
    sinks = attempts.begin(generation=1)
    attempts.open(sinks)
    attempts.finish(sinks)
    assert attempts.readers_see == []


def test_rows_of_others_stay(attempts: Attempts) -> None:
    attempts.target.create("yesterday.csv", b"yesterday")
    attempts.run("a", mode="overwrite")
    attempts.target.create("other-run.csv", b"other run")
    attempts.finish(attempts.run(mode="overwrite"))
    assert attempts.readers_see == ["other run"]


def test_later_run_that_has_overwritten_the_target_keeps_its_rows(attempts: Attempts) -> None:
    attempts.run("a", "b", application="first")
    later = staged(files_of(attempts.target, TUESDAY, overwrite=True), name_of(1), "later")
    files_of(attempts.target, TUESDAY, overwrite=True).commit(later)
    attempts.finish(attempts.run("a"))
    assert attempts.readers_see == ["later"]


def test_write_whose_place_a_removed_one_has_taken_is_refused(attempts: Attempts, capsys: CaptureFixture) -> None:
    attempts.run("a", "b", application="first", mode="overwrite")
    sinks = attempts.run("a", mode="overwrite")
    with pytest.raises(
        RowsStand, match=r"1 write of earlier attempts.* taken the place .*restore job --from run-start"
    ):
        attempts.end(sinks)
    attempts.end(sinks, [UID])
    assert "sink 'report': rows that earlier attempts of this run have written stay" in capsys.readouterr().out
    assert attempts.readers_see == ["b"]


@pytest.mark.parametrize("allowed", [[UID], {UID: "keep"}, {UID: "drop", "other": "drop"}])
@pytest.mark.parametrize("rows", [["a"], ["a2"], []])
@pytest.mark.parametrize("gated", [False, True])
def test_rows_stay_if_the_job_names_the_sink(
    attempts: Attempts, allowed: AllowanceOption, rows: list[str], capsys: CaptureFixture, *, gated: bool
) -> None:
    """``gated``: the rows wait, and are published with those that the script has written."""
    first = attempts.begin()
    state = attempts.open(first, gated=gated)
    for text in ["a", "b", "c"]:
        write(first, state, text)
    attempts.checkpoint(first, publishes=not gated)
    sinks = attempts.begin()
    state = attempts.open(sinks, gated=gated)
    for text in rows:
        write(sinks, state, text)
    attempts.end(sinks, allowed)
    attempts.checkpoint(sinks)
    assert attempts.readers_see == [*(rows or ["a"]), "b", "c"]
    assert capsys.readouterr().out.count("[CKP169]") == 1
    attempts.end(attempts.run("a", "b", "c"), allowed)
    assert "[CKP169]" not in capsys.readouterr().out


def test_rows_of_an_earlier_pass_stay_if_the_job_names_the_sink(attempts: Attempts, capsys: CaptureFixture) -> None:
    attempts.run("a")
    attempts.held.clear()
    for allowed in ([UID], False):
        sinks = attempts.begin(generation=1)
        attempts.open(sinks)
        attempts.end(sinks, allowed)
        attempts.checkpoint(sinks)
        assert attempts.readers_see == (["a"] if allowed else [])
        assert "[CKP169]" in capsys.readouterr().out


@pytest.mark.parametrize("allowed", [True, "keep", ["other"]])
def test_rows_of_a_sink_that_the_script_uses_do_not_stay_by_a_decision_on_all(
    attempts: Attempts, allowed: AllowanceOption
) -> None:
    """It is about states that the script does not use."""
    attempts.run("a", "b", application="first")
    sinks = attempts.run("a")
    attempts.end(sinks, allowed)
    attempts.checkpoint(sinks)
    assert attempts.readers_see == ["a"]


def test_sink_that_cannot_replace_rows_is_refused(attempts: Attempts) -> None:
    attempts.run("a", "b", application="first")
    sinks = attempts.run("a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenFolder, "prepare_removal", OpenSink.prepare_removal)
        with pytest.raises(
            RowsStand, match=r"1 write .* cannot take them out.*allow_non_restored_state=\[\"report\"\]"
        ):
            attempts.end(sinks)


def test_numbers_that_are_not_used_again_are_refused(attempts: Attempts) -> None:
    first = attempts.begin()
    for _ in range(2):
        first.number("rows", Origin(plan="", inputs=""))
    attempts.checkpoint(first)
    again = attempts.begin()
    again.number("rows", Origin(plan="", inputs=""))
    with pytest.raises(RowsStand, match=r"job\.txn\('rows'\): .* 1 write more .*the numbers have shifted"):
        attempts.end(again)


def test_sink_that_the_script_opens_no_more_is_refused(attempts: Attempts, capsys: CaptureFixture) -> None:
    attempts.run("a", application="first")
    sinks = attempts.begin()
    with pytest.raises(NonRestoredState, match=r"sink 'report' see rows .* does not open it.*--rename"):
        attempts.end(sinks)
    attempts.end(sinks, [UID])
    assert "[CKP169]" in capsys.readouterr().out


def test_sink_that_a_cleared_run_opens_no_more_is_named(attempts: Attempts, capsys: CaptureFixture) -> None:
    attempts.run()
    attempts.journaled = [
        SinkRecord(uid="errors", version=1, run="run", target="/errors"),
        SinkRecord(uid="other", version=1, run="monday", target="/other"),
        SinkRecord(uid="renamed", version=1, run="run", target="/out"),
    ]
    attempts.finish(attempts.run())
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "[CKP169]" in line)
    assert line.startswith("sink 'errors': this run has written to /errors before it was computed again")


def test_table_that_a_cleared_run_overwrites_no_more_is_named(attempts: Attempts, capsys: CaptureFixture) -> None:
    """It does not tell whose overwrite it holds."""
    attempts.journaled = [SinkRecord(uid=UID, version=1, run="run", target="/out")]
    for rows in ([], ["a"]):
        sinks = attempts.begin(generation=1)
        state = attempts.open(sinks, mode="overwrite")
        for text in rows:
            write(sinks, state, text)
        attempts.end(sinks)
        assert ("sink 'report': this run has overwritten /out before" in capsys.readouterr().out) == (not rows)


def test_rows_of_turns_that_are_not_run_again_stay(attempts: Attempts, capsys: CaptureFixture) -> None:
    attempts.run("turn 1", "turn 2", application="first")
    passed = attempts.begin()
    passed.pass_over({UID: 2})
    attempts.finish(passed)
    attempts.open(passed)
    attempts.finish(passed)
    kept = LoopDetail(application="", path="p/q/1-a", turns=2, writes={UID: 2})
    attempts.end(attempts.begin(), kept=[kept])
    attempts.finish(attempts.run(), kept=[kept])
    assert attempts.readers_see == ["turn 1", "turn 2"]
    assert "[CKP169]" not in capsys.readouterr().out


def test_rows_that_wait_for_a_gate_are_given_up(attempts: Attempts) -> None:
    for rows in (["a", "b"], ["a"]):
        sinks = attempts.begin()
        state = attempts.open(sinks, gated=True)
        for text in rows:
            write(sinks, state, text)
        attempts.end(sinks)
        assert sinks.unsaved
        attempts.checkpoint(sinks, publishes=rows == ["a"])
        assert not sinks.unsaved
    assert attempts.readers_see == ["a"]


# -- another name, other options ---------------------------------------------------------------------------------------


def test_sink_under_another_name_is_refused_while_its_run_has_rows_there(attempts: Attempts) -> None:
    attempts.run("a", application="first")
    renamed = r"sink 'rapport' .* as sink 'report'.*restore latest --rename report=rapport"
    with pytest.raises(NonRestoredState, match=renamed):
        attempts.open(attempts.begin(), "rapport")
    attempts.open(attempts.begin(allowed=["report"]), "rapport")
    attempts.held = {"rapport": replace(attempts.held[UID], uid="rapport")}  # as --rename does
    sinks = attempts.begin()
    write(sinks, attempts.open(sinks, "rapport"), "a")
    attempts.finish(sinks)
    assert attempts.readers_see == ["a"]


def test_other_name_of_a_cleared_run_is_refused_though_its_restore_point_has_none(attempts: Attempts) -> None:
    attempts.journaled = [SinkRecord(uid=UID, version=1, run="run", target="/out")]
    with pytest.raises(NonRestoredState, match="as sink 'report'"):
        attempts.open(attempts.begin(generation=1), "rapport")
    attempts.open(attempts.begin(generation=1))


@pytest.mark.parametrize("cleared", [False, True])
def test_sink_that_takes_the_place_of_rows_may_have_another_name(attempts: Attempts, cleared: bool) -> None:
    attempts.run("a", mode="overwrite")
    if cleared:
        attempts.held.clear()
        attempts.journaled = [SinkRecord(uid=UID, version=1, run="run", target="/out")]
    sinks = attempts.begin(generation=int(cleared))
    state = attempts.open(sinks, "rapport", mode="overwrite")
    if not cleared:
        with pytest.raises(NonRestoredState, match="'report' see rows"):
            attempts.end(sinks)  # so far the rows stand as they are
    write(sinks, state, "b")
    attempts.finish(sinks)
    assert attempts.readers_see == ["b"]


def test_append_under_another_name_is_refused_though_the_run_has_overwritten(attempts: Attempts) -> None:
    attempts.run("a", mode="overwrite")
    with pytest.raises(NonRestoredState, match="as sink 'report'"):
        attempts.open(attempts.begin(), "rapport")


@pytest.mark.parametrize("writes", [["a"], ["a", "b"]], ids=["only under the old name", "under both"])
@pytest.mark.parametrize("name", [UID, "rapport"])
def test_cleared_run_replaces_what_its_renamed_sink_has_written(
    attempts: Attempts, name: str, writes: list[str]
) -> None:
    """The run has written, was restored with ``--rename report=rapport``, and finished."""
    attempts.run("a", application="first")
    attempts.held = {"rapport": replace(attempts.held.pop(UID), uid="rapport")}
    sinks = attempts.begin()
    state = attempts.open(sinks, "rapport")
    for text in writes:
        write(sinks, state, text)
    attempts.finish(sinks)
    attempts.held.clear()
    written = SinkRecord(uid=UID, version=1, run="run", target="/out")
    attempts.journaled = list(sink_transitions.rename([written], {UID: "rapport"}))
    sinks = attempts.begin(generation=1)
    write(sinks, attempts.open(sinks, name), "new")
    attempts.finish(sinks)
    assert attempts.readers_see == ["new"]


@pytest.mark.parametrize("back_as", [UID, "rapport"])
@pytest.mark.parametrize("renamed_for", ["tuesday", "wednesday"])
def test_rows_that_a_renamed_sink_has_written_later_are_in_the_way_under_both_names(
    attempts: Attempts, back_as: str, renamed_for: str
) -> None:
    """The job goes back to what it was after monday, with one name or the other."""
    attempts.run("a")
    monday, attempts.run_key = attempts.held.pop(UID), "tuesday"
    wrote_as = "rapport" if renamed_for == "tuesday" else UID
    attempts.held = {wrote_as: replace(monday, uid=wrote_as)}
    sinks = attempts.begin()
    write(sinks, attempts.open(sinks, wrote_as), "b")
    attempts.finish(sinks)
    written = SinkRecord(uid=UID, version=1 if renamed_for == "tuesday" else 2, target="/out")
    attempts.journaled = [
        replace(sink, version=2) if sink.uid == wrote_as else sink
        for sink in sink_transitions.rename([written], {UID: "rapport"})
    ]
    attempts.held, attempts.run_key = {back_as: replace(monday, uid=back_as)}, "wednesday"
    with pytest.raises(SinkMoved, match="tuesday"):
        attempts.open(attempts.begin(), back_as)


def test_next_run_may_give_a_sink_another_name(attempts: Attempts) -> None:
    attempts.run("a")
    attempts.run_key = "tuesday"
    sinks = attempts.begin()
    write(sinks, attempts.open(sinks, "rapport"), "b")
    attempts.checkpoint(sinks)
    assert attempts.readers_see == ["a", "b"]


def test_sinks_that_exchange_their_targets_are_refused(attempts: Attempts) -> None:
    sink = attempts.run("a") and attempts.held[UID].sink
    assert sink
    attempts.held["other"] = replace(attempts.held[UID], uid="other", sink=replace(sink, target="/other"))
    with pytest.raises(NonRestoredState, match="as sink 'other'"):
        attempts.open(attempts.begin(), path="/other")


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ({}, {"mode": "overwrite"}, ["a"]),
        ({"mode": "overwrite"}, {}, ["a"]),
        ({"format": "csv"}, {"format": "json"}, ["a", "yesterday"]),
        ({"partition_by": ["a", "b"]}, {"partition_by": ["b", "a"]}, ["a", "yesterday"]),
    ],
)
def test_writes_are_done_again_if_the_options_of_the_sink_changed(
    attempts: Attempts, capsys: CaptureFixture, first: dict[str, Any], second: dict[str, Any], left: list[str]
) -> None:
    attempts.target.create("yesterday.csv", b"yesterday")
    attempts.run("a", **first)
    attempts.finish(attempts.run("a", **second))
    assert attempts.readers_see == left
    assert "write 1 of this run is done again: the options of the sink changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sink", "same", "other"),
    [
        (FileSink("/a"), FileSink("/b", partition_by=[]), FileSink("/a", partition_by=["day"])),
        (DeltaSink("/a"), DeltaSink("/a", partition_by=()), DeltaSink("/a", run_column="run")),
        (IcebergSink("a.b"), IcebergSink("a.c"), IcebergSink("a.b", mode="overwrite")),
        (
            JdbcSink("jdbc:postgresql:a", "t", properties={"password": "1"}),
            JdbcSink("jdbc:postgresql:a", "t", properties={"password": "2"}),
            JdbcSink("jdbc:postgresql:a", "t", mode="upsert", key=["id"]),
        ),
    ],
)
def test_options_that_change_rows_are_compared_and_no_others(sink: Sink, same: Sink, other: Sink) -> None:
    assert sink.compared_options == same.compared_options != other.compared_options
    assert json.loads(json.dumps(sink.compared_options)) == sink.compared_options
