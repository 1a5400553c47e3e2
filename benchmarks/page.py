"""Makes docs/performance.md and its charts of the results. Runs anywhere.

The text of the page is written by hand. Between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` stands what the results
say, so that no figure is typed. Each question has such a block, and all goals together have one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.answers import Answer, Finding, Machine, Result, Results, Spread
from benchmarks.charts import drawn

RESULTS = Path("benchmarks/results.json")
PAGE = Path("docs/performance.md")
CHARTS = Path("docs/performance")

GOALS = "goals"  # the block with the goals of all questions
BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->\n)", re.DOTALL)


def blocks(page: str) -> list[str]:
    """Return the names of the page's blocks, in their order."""
    return [name for _, name, _ in BLOCK.findall(page)]


def rendered(page: str, results: Results) -> str:
    """Return the page with the results in its blocks."""
    return BLOCK.sub(lambda found: f"{found[1]}{_block(found[2], results)}{found[3]}", page)


def charts(results: Results) -> dict[str, str]:
    """Return the text of each chart by its file name."""
    return {f"{name}.svg": drawn(result.answer.chart) for name, result in results.items() if result.answer.chart}


def _block(name: str, results: Results) -> str:
    if name == GOALS:
        return _goals(results)
    if name not in results:
        return f"Not measured yet: `python -m benchmarks --only {name}`.\n"
    result = results[name]
    answer = result.answer
    chart = f"\n![{answer.chart.title}](performance/{name}.svg)\n" if answer.chart else ""
    return f"{_findings(answer)}{chart}\n{_costs(answer)}\n{_circumstances(result)}\n"


def _goals(results: Results) -> str:
    """Return a table of all goals, in the order of their names."""
    findings = [finding for result in results.values() for finding in result.answer.findings if finding.goal]
    rows = ([*_goal(finding), finding.what, _value(finding)] for finding in findings)
    table = _table(
        ["goal", "met", "what", "min / **median** / max"], sorted(rows, key=lambda row: row[0].split(":")[0])
    )
    return table if findings else "Nothing is measured yet: `make bench`.\n"


def _findings(answer: Answer) -> str:
    columns = ["what", "min / **median** / max", "goal", "met", "elsewhere"]
    return _table(
        columns, ([finding.what, _value(finding), *_goal(finding), finding.known] for finding in answer.findings)
    )


def _goal(finding: Finding) -> list[str]:
    if finding.goal is None:
        return ["", ""]
    bounds = (("≤", finding.goal.at_most), ("≥", finding.goal.at_least))
    shown = ", ".join(f"{sign} {_amount(bound, finding.unit)}" for sign, bound in bounds if bound is not None)
    return [f"{finding.goal.name}: {shown}", "yes" if finding.met else "**no**"]


def _costs(answer: Answer) -> str:
    figures = list(dict.fromkeys(name for cost in answer.costs for name in cost.figures))
    return _table(
        ["one run of", "min / **median** / max", *figures],
        (
            [cost.variant, _spread(cost.seconds, "s"), *(_number(cost.figures.get(name)) for name in figures)]
            for cost in answer.costs
        ),
    )


def _circumstances(result: Result) -> str:
    machine, answer = result.machine, result.answer
    return (
        f"Measured on {machine.day}: {_named(machine)}; size `{result.size}`, {answer.rounds} rounds; load"
        f" {answer.load.min:.1f} / **{answer.load.median:.1f}** / {answer.load.max:.1f}."
    )


def _named(machine: Machine) -> str:
    return f"{machine.cores} cores, {machine.memory_gb} GB, Python {machine.python}, Spark {machine.spark}, Java {machine.java}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown without the columns that are empty in all rows."""
    cells = [list(row) for row in rows]
    kept = [number for number in range(len(columns)) if any(row[number] for row in cells)]
    lines = [columns, ["---"] * len(columns), *cells]
    return "".join(f"| {' | '.join(line[number] for number in kept)} |\n" for line in lines)


def _value(finding: Finding) -> str:
    return _spread(finding.value, finding.unit)


def _spread(spread: Spread, unit: str) -> str:
    """Return the three values in one unit: that of the median."""
    scale, shown = (1000.0, "ms") if unit == "s" and spread.median < 1 else (1.0, unit)
    low, middle, high = (_number(value * scale) for value in (spread.min, spread.median, spread.max))
    return f"{low} / **{middle}** / {high} {shown}"


def _amount(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}"


def _number(value: float | None) -> str:
    """Return three significant digits, all digits of what is larger, and nothing of what is absent."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def write_page(checkout: Path, out: Path, results: Results) -> None:
    """Write page and charts of ``results`` below ``out``. The text comes from the page of ``checkout``."""
    page = (checkout / PAGE).read_text(encoding="utf-8")
    (out / CHARTS).mkdir(parents=True, exist_ok=True)
    (out / PAGE).write_text(rendered(page, results), encoding="utf-8")
    for name, text in charts(results).items():
        (out / CHARTS / name).write_text(text, encoding="utf-8")
