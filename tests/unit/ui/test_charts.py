"""The charts of recorded histories: what can be seen on them."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace

import pytest

from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.hooks.references import HistoryReference
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.ui import charts
from airflow_checkpoint_provider.ui.app import _rendered
from airflow_checkpoint_provider.ui.polling import HistoryReading
from airflow_checkpoint_provider.ui.views.job import drawn as drawn_state
from airflow_checkpoint_provider.ui.views.job import job_page
from tests.support.recorded import RUN, Recorded, at
from tests.unit.ui.readings import reading


def test_chart_of_durations_has_the_part_that_is_not_known(finished: Recorded) -> None:
    assert "not split" not in charts.durations(finished.state, "", "light").decode()
    finished.started("04:00:00", try_number=3, generation=1)
    asked = finished.coordinator.trigger(Request(token="people|1", origin="people"))
    finished.clock = at("04:00:30")
    finished.completed_now(asked)
    assert ">not split</text>" in charts.durations(finished.state, "", "light").decode()


@pytest.mark.parametrize("name", charts.DRAWINGS)
@pytest.mark.parametrize("theme", charts.INK)
def test_charts_are_images_without_scripts(finished: Recorded, name: str, theme: str) -> None:
    for recorded in (finished, Recorded(job="a.b")):
        image = charts.DRAWINGS[name](recorded.state, "", theme).decode()
        assert image.startswith("<?xml")
        assert "<script" not in image


def test_each_kind_of_mark_on_the_timeline_has_a_letter_and_a_name(finished: Recorded) -> None:
    """A colour alone tells nothing to who cannot see it."""
    finished.started("04:00:00", try_number=3, generation=1)
    finished.triggered("stage 'delays'", "04:10:00")
    drawn = charts.timeline(finished.state, "", "light").decode()
    letters = re.findall(r'class="label">(.)</text>', drawn)
    assert Counter(letters) == {"C": 5, "A": 1, "R": 1, "P": 1}
    for legend in ("C: completed", "A: aborted", "R: restored", "P: pending"):
        assert f">{legend}</text>" in drawn


def test_savepoint_of_a_stop_has_one_mark() -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.suspended("22:30:00")
    drawn = charts.timeline(recorded.state, "", "dark").decode()
    assert re.findall(r'class="label">(.)</text>', drawn) == ["X"]
    assert ">X: suspended with a savepoint</text>" in drawn


def test_chart_names_each_checkpoint(finished: Recorded) -> None:
    drawn = charts.durations(finished.state, RUN, "light").decode()
    assert all(f"chk-{number}" in drawn for number in (1, 2, 3, 5, 6))


def dots(drawn: str) -> dict[str, list[tuple[float, float]]]:
    """Return where the marks of each letter stand on a timeline."""
    found: dict[str, list[tuple[float, float]]] = {}
    pattern = r'class="label">(.)</desc><circle cx="([\d.]+)" cy="([\d.]+)"'
    for letter, x, y in re.findall(pattern, drawn):
        found.setdefault(letter, []).append((float(x), float(y)))
    return found


def lines(drawn: str) -> list[tuple[float, float]]:
    """Return the beginning and the end of each attempt's line on a timeline."""
    pattern = r'd="M([\d.]+) [\d.]+ L([\d.]+) [\d.]+" class="line reactive'
    return [(float(begin), float(end)) for begin, end in re.findall(pattern, drawn)]


def test_savepoint_has_a_mark_of_its_own(running: Recorded) -> None:
    newest = running.state.newest_completed
    checkpoints = (
        replace(c, request=replace(c.request, kind="savepoint")) if c.id == newest else c
        for c in running.state.checkpoints
    )
    state = replace(running.state, checkpoints=tuple(checkpoints))
    drawn = charts.timeline(state, "", "light").decode()
    assert Counter(re.findall(r'class="label">(.)</text>', drawn)) == {"C": 2, "P": 1, "S": 1}
    assert ">S: savepoint</text>" in drawn


def test_marks_that_are_close_stand_beside_each_other(finished: Recorded) -> None:
    """Checkpoints 5 and 6 of the second attempt are two minutes apart."""
    drawn = charts.timeline(finished.state, "", "light").decode()
    places = sorted(x for marks in dots(drawn).values() for x, y in marks if y > 30)
    assert len(places) == 3
    assert all(right - left > 13 for left, right in itertools.pairwise(places))


def test_lines_of_the_timeline_can_be_seen(finished: Recorded) -> None:
    drawn = charts.timeline(finished.state, "", "light").decode()
    assert re.search(r"\.series \.line *\{ *stroke-width: *8px !important", drawn)


def test_timeline_over_midnight_names_the_days(finished: Recorded) -> None:
    drawn = charts.timeline(finished.state, "", "light").decode()
    assert ">20 Nov 22:00</text>" in drawn
    assert ">21 Nov 03:44</text>" in drawn


def test_timeline_of_a_running_attempt_goes_on_to_now() -> None:
    recorded = Recorded()
    recorded.started("22:00:20")
    recorded.stage("clean", "22:10:00", "22:10:03", work_s=500, kib=30)
    beat, now = Beat(counter=3, at=at("22:20:00")), at("22:40:59")

    def shown(alive: bool | None, beat: Beat | None = beat) -> str:
        return drawn_state(reading(recorded, beat, alive), now).at

    assert shown(True) == at("22:40:00")
    assert (shown(False), shown(None), shown(None, None)) == (at("22:20:00"), at("22:20:00"), recorded.state.at)
    drawn = charts.timeline(drawn_state(reading(recorded, beat, True), now), "", "light").decode()
    ((_, end),), ((mark, _),) = lines(drawn), dots(drawn)["C"]
    assert end > 3 * mark
    recorded.ended("22:41:00")
    assert drawn_state(reading(recorded, beat, None), at("23:00:00")) is recorded.state


def test_chart_has_the_values_of_the_last_hundred(running: Recorded) -> None:
    running.aborted(4, "02:55:00", "expired")
    for number in range(101):
        moment = f"0{3 + number // 60}:{number % 60:02}"
        seconds = 42 if number in (0, 100) else 2  # the first of them is not among the last hundred
        running.stage("delays", f"{moment}:00", f"{moment}:{seconds:02}", work_s=5, kib=1, sync_s=0.0)
    drawn = charts.durations(running.state, "", "light").decode()
    values = re.findall(r'<desc class="value">([^<]+)</desc>', drawn)
    assert Counter(values) == {"2.0 s": 99, "42 s": 1}


def test_timeline_has_at_most_500_marks_of_the_newest_checkpoints(finished: Recorded) -> None:
    """An honest history may retain thousands, and each mark takes time to draw."""
    state = finished.state
    newest = state.checkpoints[-1]
    many = tuple(replace(newest, id=number, branch=0) for number in range(newest.id + 1, newest.id + 3000))
    found = FoundHistory(finished.keys, replace(state, checkpoints=(*state.checkpoints, *many)))
    drawn = charts.timeline(found.state, "", "light").decode()
    letters = Counter(re.findall(r'class="label">(.)</text>', drawn))
    assert 450 < letters.total() <= 500
    assert "A" not in letters  # that one is older
    page = job_page(
        HistoryReference("c", finished.keys.prefix), HistoryReading(found, finished.store.uri), at("23:59:00")
    )
    left_out = len(found.state.checkpoints) - letters["C"]
    assert page.marks_left_out == left_out
    text = _rendered("job.html", {"page": page, "reference": page.reference, "others": []})
    assert f"{left_out} older checkpoints have no mark on the timeline." in text
