"""Charts of a history as SVG images, drawn by pygal. Runs in Airflow (API server); no I/O.

An image in a page runs no script and takes no style from it, so there is one for each theme. A table beside each image has the
same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pygal
from pygal.style import Style

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, AttemptRecord, Checkpoint, State
from airflow_checkpoint_provider.text.summary_table import attempts_of, row
from airflow_checkpoint_provider.text.units import DAY, duration, size
from airflow_checkpoint_provider.ui.views.job import ATTEMPTS, shown_checkpoints

BLUE, GREEN, RED, ORANGE, PURPLE, GREY = "#3b82f6", "#16a34a", "#dc2626", "#d97706", "#9333ea", "#8b8f98"
INK = {"light": "#3f3f46", "dark": "#d4d4d8"}
LINES = {"light": "#d4d4d8", "dark": "#3f3f46"}
MOMENTS = 6  # that are written below the timeline
Drawing = Callable[[State, str, str], bytes]


def timeline(state: State, run: str, theme: str) -> bytes:
    """Return the attempts of a history or run as lines over time, with their checkpoints on them."""
    attempts = (attempts_of(state, run) if run else state.attempts)[-ATTEMPTS:]
    epochs = {attempt.epoch for attempt in attempts}
    checkpoints = [checkpoint for checkpoint in shown_checkpoints(state, run) if checkpoint.epochs[0] in epochs]
    marks = _marks(attempts, checkpoints, theme)
    moments = _moments(state, attempts)
    colours = (GREY, *(colour for colour, _ in marks.values()))
    chart = pygal.XY(
        **_options(theme, colours),
        height=90 + 34 * len(attempts),
        show_x_guides=True,
        x_value_formatter=lambda at: datetime.fromtimestamp(at, UTC).strftime(_time_format(moments)),
        y_labels=[{"value": epoch, "label": f"attempt {epoch}"} for epoch in sorted(epochs)],
        range=(min(epochs, default=0) - 0.5, max(epochs, default=0) + 0.5),
        inverse_y_axis=True,
        allow_interruptions=True,
        margin_right=50,  # for the last moment
        stroke_style={"width": 6},
        truncate_label=-1,
    )
    chart.x_labels = moments
    chart.add("attempt", [point for attempt in attempts for point in _life(state, attempt)], show_dots=False)
    for name, (_, points) in marks.items():
        chart.add(name, points, stroke=False, dots_size=6)
    return _svg(chart)


def _marks(
    attempts: Sequence[AttemptRecord], checkpoints: Sequence[Checkpoint], theme: str
) -> dict[str, tuple[str, list[tuple[float, int]]]]:
    """Return the kinds of marks on the timeline that there are: name, colour, and places."""
    marks = {
        "completed": (GREEN, [_mark(c) for c in checkpoints if c.completed_at and not c.savepoint]),
        "aborted": (RED, [_mark(c) for c in checkpoints if c.status == ABORTED]),
        "pending": (ORANGE, [_mark(c) for c in checkpoints if c.status == PENDING]),
        "savepoint": (PURPLE, [_mark(c) for c in checkpoints if c.completed_at and c.savepoint]),
        "suspended": (INK[theme], [_mark(c) for c in checkpoints if c.completed_at and kind_named(c.kind).suspends]),
        "restored": (BLUE, [_restored(attempt) for attempt in attempts if attempt.restore_point]),
    }
    return {name: mark for name, mark in marks.items() if mark[1]}


def durations(state: State, run: str, theme: str) -> bytes:
    """Return the durations of the newest checkpoints."""
    done = _completed(state, run)
    chart = pygal.StackedBar(**_options(theme, (BLUE, GREEN)), value_formatter=duration, height=260)
    _label_some(chart, [f"chk-{checkpoint.id}" for checkpoint in done])
    rows = [row(state, checkpoint) for checkpoint in done]
    chart.add("synchronous", [line.sync_s or 0.0 for line in rows])
    chart.add("asynchronous", [line.async_s or 0.0 for line in rows])
    return _svg(chart)


def sizes(state: State, run: str, theme: str) -> bytes:
    """Return the sizes of the newest checkpoints."""
    done = _completed(state, run)
    chart = pygal.Line(
        **_options(theme, (PURPLE, ORANGE)), value_formatter=lambda count: size(round(count)), height=260, min_scale=2
    )
    _label_some(chart, [f"chk-{checkpoint.id}" for checkpoint in done])
    chart.add("size", [checkpoint.bytes for checkpoint in done])
    chart.add("new bytes", [checkpoint.new_bytes for checkpoint in done])
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
        major_guide_stroke_color=LINES[theme], no_data_font_size=14,
    )  # fmt: skip
    return {
        "style": style,
        "js": [],
        "width": 900,
        "legend_at_bottom": True,
        "legend_box_size": 10,
        "margin": 10,
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
    """Return the line of an attempt from its start to its end, or to its last entry in the journal, and a gap after it."""
    own = [checkpoint for checkpoint in state.checkpoints if attempt.epoch in checkpoint.epochs]
    signs = [checkpoint.completed_at or checkpoint.triggered_at for checkpoint in own]
    end = attempt.ended_at or (max(signs, default=attempt.at) if state.over(attempt.epoch) else state.at)
    return [(_seconds(attempt.at), attempt.epoch), (_seconds(max(end, attempt.at)), attempt.epoch), None]


def _moments(state: State, attempts: Sequence[AttemptRecord]) -> list[float]:
    """Return some moments from the first to the last that the timeline shows, evenly spaced, for its axis."""
    shown = [moment[0] for attempt in attempts for moment in _life(state, attempt) if moment] or [0.0]
    first, last = min(shown), max(shown)
    return [first + (last - first) * part / (MOMENTS - 1) for part in range(MOMENTS)]


def _time_format(moments: Sequence[float]) -> str:
    return "%H:%M:%S" if moments[-1] - moments[0] < DAY else "%d %b %H:%M"


def _seconds(at: str) -> float:
    return statistics.timestamp(at) / 1000
