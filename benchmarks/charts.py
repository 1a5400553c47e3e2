"""Draws the charts of docs/performance.md. Runs anywhere.

The same data give the same bytes, so a test compares a chart with the results. The background is white: a chart is read on
light and on dark pages.
"""

from __future__ import annotations

import io
from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from benchmarks.answers import Chart

STYLE: dict[RcKeyType, Any] = {
    "svg.hashsalt": "airflow-checkpoint-provider",  # else ids are random
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e7eb",
}
COLOURS = ("#2f855a", "#b7791f", "#2b6cb0", "#9b2c2c", "#6b46c1", "#52606d")
MARKERS = "osD^vP"


def drawn(chart: Chart) -> str:
    """Return the chart as SVG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.6), layout="constrained")
        axes = figure.subplots()
        for (name, points), colour, marker in zip(chart.lines.items(), cycle(COLOURS), cycle(MARKERS)):
            axes.plot(*zip(*points, strict=True), label=name, color=colour, marker=marker, markersize=5)
        axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
        axes.set_xscale("log" if "x" in chart.logarithmic else "linear")
        axes.set_yscale("log" if "y" in chart.logarithmic else "linear")
        if "y" not in chart.logarithmic:
            axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
