"""Draws the charts of docs/inside/performance.md. Runs anywhere.

The same data give the same bytes, so a test compares a chart with the results. The background is white: a chart is read on
light and on dark pages.
"""

from __future__ import annotations

import io
from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
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
        figure = Figure(figsize=(7.6, 4.2), layout="constrained")
        axes = figure.subplots()
        for (name, points), colour, marker in zip(chart.lines.items(), cycle(COLOURS), cycle(MARKERS)):
            axes.plot(*zip(*points, strict=True), label=name, color=colour, marker=marker, markersize=5)
        axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
        if "y" not in chart.logarithmic:
            axes.set_ylim(bottom=0)
        for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
            if name in chart.logarithmic:
                axes.set(**{f"{name}scale": "log"})
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if name == "y" else (1.0,)))
                axis.set_minor_locator(NullLocator())
            axis.set_major_formatter("{x:,.10g}")
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
