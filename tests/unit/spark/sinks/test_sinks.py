"""What a retry does with the writes that its restore point holds. Runs anywhere."""

from __future__ import annotations

import pytest

from tests.unit.spark.sinks.attempts import UID, Attempts, write

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
