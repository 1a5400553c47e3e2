"""Charts of a history as SVG images, drawn by pygal. Runs in Airflow (API server); no I/O.

An image in a page runs no script and takes no style from it, so there is one for each theme. A table beside each image has the
same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pygal
from pygal.style import Style

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, Checkpoint
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text.summary_table import last_sign
from airflow_checkpoint_provider.text.units import duration, size
from airflow_checkpoint_provider.ui.views.checkpoints import split
from airflow_checkpoint_provider.ui.views.job import DRAWN, on_timeline, shown_checkpoints

BLUE, GREEN, RED, ORANGE, PURPLE, GREY = "#2563eb", "#15803d", "#b91c1c", "#b45309", "#7e22ce", "#71717a"
BLACK = "#3f3f46"
INK = {"light": "#3f3f46", "dark": "#d4d4d8"}
LINES = {"light": "#d4d4d8", "dark": "#3f3f46"}
LETTERED = (
    "file://style.css",
    "file://graph.css",
    "inline:.series .line { stroke-width: 8px !important; stroke-opacity: .7 !important; }",  # pygal's option has no effect on lines
    "inline:.text-overlay text.label { text-anchor: middle; transform: translateX(-3px); font-weight: bold; fill: #fff !important; }",
)
MOMENTS = 6  # that are written below the timeline
WIDTH, HEIGHT = 1180, 280  # of a chart
LEGENDS = 7  # beside each other: all that a chart has
DOTS = 60  # that fit beside each other on the timeline
Drawing = Callable[[State, str, str], bytes]


def timeline(state: State, run: str, theme: str) -> bytes:
    """Return the newest attempts of a history or run as lines over time, with the newest checkpoints on them."""
    attempts, checkpoints = on_timeline(state, run)
    epochs, moments = {attempt.epoch for attempt in attempts}, _moments(state, attempts)
    marks = _apart(_marks(attempts, checkpoints[:DRAWN]), (moments[-1] - moments[0]) / DOTS)
    chart = pygal.XY(
        **_options(theme, (GREY, *(mark.colour for mark in marks))),
        css=LETTERED,
        print_labels=True,
        height=timeline_height(len(attempts)),
        **_axes(epochs, moments),
        allow_interruptions=True,
        margin_right=50,  # for the last moment
        truncate_label=-1,
    )
    chart.add("attempt", [point for attempt in attempts for point in _life(state, attempt)], show_dots=False)
    for mark in marks:
        chart.add(mark.legend, mark.points, stroke=False, dots_size=8)
    return _svg(chart)


def timeline_height(attempts: int) -> int:
    """Return how high the timeline of so many attempts is."""
    return 114 + 34 * attempts


def _axes(epochs: set[int], moments: list[float]) -> dict[str, Any]:
    """Return the axes of the timeline: ``moments`` below, and an attempt on each line."""
    return {
        "show_x_guides": True,
        "x_labels": moments,
        "x_value_formatter": lambda at: datetime.fromtimestamp(at, UTC).strftime(_time_format(moments)),
        "y_labels": [{"value": epoch, "label": f"attempt {epoch}"} for epoch in sorted(epochs)],
        "range": (min(epochs, default=0) - 0.5, max(epochs, default=0) + 0.5),
        "inverse_y_axis": True,
    }


@dataclass(frozen=True)
class Mark:
    """A kind of marks on the timeline. Each mark is a dot with a ``letter`` in it, which the legend explains."""

    letter: str
    name: str
    colour: str
    places: list[tuple[float, int]]

    @property
    def legend(self) -> str:
        return f"{self.letter}: {self.name}"

    @property
    def points(self) -> list[dict[str, Any]]:
        return [{"value": place, "label": self.letter} for place in self.places]


def _marks(attempts: Sequence[AttemptRecord], checkpoints: Sequence[Checkpoint]) -> list[Mark]:
    """Return the kinds of marks on the timeline that there are."""
    done = [checkpoint for checkpoint in checkpoints if checkpoint.completed_at]
    stops = [checkpoint for checkpoint in done if checkpoint.suspends]
    savepoints = [checkpoint for checkpoint in done if checkpoint.savepoint and checkpoint not in stops]
    marks = (
        Mark("C", "completed", GREEN, [_mark(checkpoint) for checkpoint in done if not checkpoint.savepoint]),
        Mark("A", "aborted", RED, [_mark(checkpoint) for checkpoint in checkpoints if checkpoint.status == ABORTED]),
        Mark("P", "pending", ORANGE, [_mark(checkpoint) for checkpoint in checkpoints if checkpoint.status == PENDING]),
        Mark("S", "savepoint", PURPLE, [_mark(checkpoint) for checkpoint in savepoints]),
        Mark("X", "suspended with a savepoint", BLACK, [_mark(checkpoint) for checkpoint in stops]),
        Mark("R", "restored", BLUE, [_restored(attempt) for attempt in attempts if attempt.restore_point]),
    )
    return [mark for mark in marks if mark.places]


def _apart(marks: Sequence[Mark], gap: float) -> list[Mark]:
    """Move marks of the same attempt that would cover each other to the right, in the order of their times."""
    moved, last = {mark.letter: list[tuple[float, int]]() for mark in marks}, dict[int, float]()
    for (at, epoch), letter in sorted((place, mark.letter) for mark in marks for place in mark.places):
        last[epoch] = max(at, last.get(epoch, at - gap) + gap)
        moved[letter].append((last[epoch], epoch))
    return [replace(mark, places=moved[mark.letter]) for mark in marks]


def durations(state: State, run: str, theme: str) -> bytes:
    """Return the durations of the newest checkpoints, each as high as its parts together."""
    done = _completed(state, run)
    parts = [split(state, checkpoint) for checkpoint in done]
    drawn = {
        "waiting": (ORANGE, [part.waiting or 0.0 for part in parts]),
        "synchronous": (BLUE, [part.synchronous for part in parts]),
        "asynchronous": (GREEN, [part.asynchronous or 0.0 for part in parts]),
        "not split": (GREY, [part.unsplit for part in parts]),
    }
    shown = {name: (colour, values) for name, (colour, values) in drawn.items() if any(values)}
    colours = [colour for colour, _ in shown.values()]
    chart = pygal.StackedBar(**_options(theme, colours), value_formatter=duration, height=HEIGHT)
    _label_some(chart, [f"chk-{checkpoint.id}" for checkpoint in done])
    for name, (_, values) in shown.items():
        chart.add(name, values)
    return _svg(chart)


def sizes(state: State, run: str, theme: str) -> bytes:
    """Return the sizes of the newest checkpoints."""
    done = _completed(state, run)
    chart = pygal.Line(
        **_options(theme, (PURPLE, ORANGE)),
        value_formatter=lambda count: size(round(count)),
        height=HEIGHT,
        min_scale=2,
    )
    _label_some(chart, [f"chk-{checkpoint.id}" for checkpoint in done])
    chart.add("size", [checkpoint.bytes for checkpoint in done])
    chart.add("new bytes, dashed", [checkpoint.new_bytes for checkpoint in done], stroke_style={"dasharray": "6, 4"})
    return _svg(chart)


DRAWINGS: dict[str, Drawing] = {"timeline": timeline, "durations": durations, "sizes": sizes}


def _completed(state: State, run: str) -> list[Checkpoint]:
    """Return the last hundred completed checkpoints, the oldest first."""
    done = [checkpoint for checkpoint in shown_checkpoints(state, run) if checkpoint.completed_at]
    return done[: statistics.LISTED][::-1]


def _options(theme: str, colours: Sequence[str]) -> dict[str, Any]:
    style = Style(
        background="transparent", plot_background="transparent", foreground=INK[theme], foreground_strong=INK[theme],
        foreground_subtle=LINES[theme], colors=tuple(colours), opacity=".9", opacity_hover=".9", font_family="sans-serif",
        label_font_size=12, major_label_font_size=12, legend_font_size=12, guide_stroke_color=LINES[theme],
        major_guide_stroke_color=LINES[theme], no_data_font_size=14, value_font_size=3, value_label_font_size=11,
    )  # fmt: skip
    return {
        "style": style,
        "js": [],
        "width": WIDTH,
        "legend_at_bottom": True,
        "legend_at_bottom_columns": LEGENDS,
        "legend_box_size": 10,
        "truncate_legend": -1,
        "margin": 10,
        "margin_bottom": 34,  # pygal counts the lines of the legend wrong
        "no_data_text": "Nothing yet",
        "explicit_size": True,
        "pretty_print": False,
    }


def _label_some(chart: Any, labels: list[str]) -> None:
    """Write the labels below a chart; of many, some."""
    chart.x_labels, chart.x_labels_major_every, chart.show_minor_x_labels = labels, max(1, len(labels) // 8), False


def _svg(chart: Any) -> bytes:
    """Return the image, without the script that pygal adds for pages that run it."""
    chart.add_xml_filter(_without_scripts)
    drawn: bytes = chart.render()
    return drawn


def _without_scripts(root: Any) -> Any:
    for parent in [*root.iter()]:
        for script in [child for child in parent if str(child.tag).endswith("script")]:
            parent.remove(script)
    return root


def _mark(checkpoint: Checkpoint) -> tuple[float, int]:
    at = checkpoint.completed_at or checkpoint.ended_at or checkpoint.triggered_at
    return _seconds(at), checkpoint.epochs[0]


def _restored(attempt: AttemptRecord) -> tuple[float, int]:
    return _seconds(attempt.at), attempt.epoch


def _life(state: State, attempt: AttemptRecord) -> list[tuple[float, int] | None]:
    """Return the line of an attempt from its start to its end, or to the moment of the state, and a gap after it."""
    end = last_sign(state, attempt) if state.over(attempt.epoch) else state.at
    return [(_seconds(attempt.at), attempt.epoch), (_seconds(max(end, attempt.at)), attempt.epoch), None]


def _moments(state: State, attempts: Sequence[AttemptRecord]) -> list[float]:
    """Return some moments from the first to the last that the timeline shows, evenly spaced, for its axis."""
    shown = [moment[0] for attempt in attempts for moment in _life(state, attempt) if moment] or [0.0]
    first, last = min(shown), max(shown)
    return [first + (last - first) * part / (MOMENTS - 1) for part in range(MOMENTS)]


def _time_format(moments: Sequence[float]) -> str:
    days = {datetime.fromtimestamp(at, UTC).date() for at in (moments[0], moments[-1])}
    return "%H:%M:%S" if len(days) == 1 else "%d %b %H:%M"


def _seconds(at: str) -> float:
    return statistics.timestamp(at) / 1000
