"""Makes docs/inside/performance.md and its charts of the results. Runs where PySpark is installed, without Spark.

The text of the page is written by hand. Between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` stands what the results
say, so that no figure is typed. Each question has such a block. So have all goals together, and the five figures that come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_checkpoint_provider.coordinator.liveness import Beats
from benchmarks.answers import Answer, Finding, Machine, Result, Results, Spread
from benchmarks.charts import drawn
from tests.support.blocks import filled

RESULTS = Path("benchmarks/results.json")
PAGE = Path("docs/inside/performance.md")
CHARTS = Path("docs/performance")

SUMMARY = "summary"  # the block with the figures that a user asks for first
GOALS = "goals"  # the block with the goals of all questions
ABSENT = "not measured"


@dataclass(frozen=True)
class Headline:
    """A row of the summary: a user's question, what was compared, and the findings of ``question`` that have the figures.

    ``section`` is the anchor of the section that says more.
    """

    asked: str
    section: str
    compared: str
    question: str
    disk: str
    s3: str = ""


HEADLINES = (
    Headline(
        "How much slower is my job if nothing fails?",
        "what-does-a-job-take-in-which-nothing-fails",
        "five stages over TPC-H, beside one lazy plan that keeps nothing",
        "stages",
        "five stages, local disk: beside one lazy plan",
    ),
    Headline(
        "What does a retry cost?",
        "what-does-the-retry-of-a-killed-job-take",
        "the retry of a job that was killed in its fifth stage, beside only the work that was left",
        "retry",
        "the retry, beside only the work that was left",
    ),
    Headline(
        "What does one checkpoint cost?",
        "how-long-does-one-checkpoint-take",
        "from the trigger until it is completed, beside your script; one state; without the rows",
        "checkpoints",
        "1 state, local disk: trigger until completed",
        "1 state, S3: trigger until completed",
    ),
    Headline(
        "How soon does a killed query continue?",
        "how-soon-does-a-killed-query-continue",
        "from the kill of its driver until the next driver has committed a batch",
        "takeovers",
        "local disk: from the kill to a committed batch",
        "S3: from the kill to a committed batch",
    ),
)


def rendered(page: str, results: Results) -> str:
    """Return the page with the results in its blocks."""
    return filled(page, lambda name: _block(name, results))


def charts(results: Results) -> dict[str, str]:
    """Return the text of each chart by its file name."""
    return {f"{name}.svg": drawn(result.answer.chart) for name, result in results.items() if result.answer.chart}


def _block(name: str, results: Results) -> str:
    if name == SUMMARY:
        return _summary(results)
    if name == GOALS:
        return _goals(results)
    if name not in results:
        return f"Not measured yet: `python -m benchmarks --only {name}`.\n"
    result = results[name]
    answer = result.answer
    chart = f"\n![{answer.chart.title}](../{CHARTS.name}/{name}.svg)\n" if answer.chart else ""
    return f"{_findings(answer)}{chart}\n{_costs(answer)}\n{_circumstances(result)}\n"


def _summary(results: Results) -> str:
    """Return a table with the median of each headline, and with what an idle driver costs."""
    columns = ["question", "local disk", "S3", "what it is"]
    rows = [
        [
            f"[{headline.asked}](#{headline.section})",
            _median(results, headline.question, headline.disk),
            _median(results, headline.question, headline.s3),
            headline.compared,
        ]
        for headline in HEADLINES
    ]
    return _table(columns, [*rows, _idle()])


def _median(results: Results, question: str, what: str) -> str:
    """Return the median of the finding ``what``."""
    findings = results[question].answer.findings if question in results else ()
    found = next((finding for finding in findings if finding.what == what), None)
    return _bold_median(found.value.median, found.unit) if found else ABSENT


def _bold_median(median: float, unit: str) -> str:
    scale, shown = _scaled(median, unit)
    return f"**{_number(median * scale)}** {shown}"


def _idle() -> list[str]:
    """Return the row of a driver that waits. Nothing is measured: the intervals are those of the code."""
    from airflow_checkpoint_provider.spark.attempt.watch import POLL  # it imports parts of PySpark

    beat = Beats().every
    requests = _bold_median(1 / POLL + 1 / beat, "requests/s")
    what = f"a read of the journal each {_amount(POLL, 's')}, and a heartbeat each {_amount(beat, 's')}; not measured, see there"
    return ["[What does an idle driver cost?](#what-does-an-idle-driver-cost)", requests, requests, what]


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
    scale, shown = _scaled(spread.median, unit)
    low, middle, high = (_number(value * scale) for value in (spread.min, spread.median, spread.max))
    return f"{low} / **{middle}** / {high} {shown}"


def _scaled(median: float, unit: str) -> tuple[float, str]:
    """Return the unit in which a median is shown, and how many of these are one of ``unit``."""
    return (1000.0, "ms") if unit == "s" and median < 1 else (1.0, unit)


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
    for folder in (CHARTS, PAGE.parent):
        (out / folder).mkdir(parents=True, exist_ok=True)
    (out / PAGE).write_text(rendered(page, results), encoding="utf-8")
    for name, text in charts(results).items():
        (out / CHARTS / name).write_text(text, encoding="utf-8")
