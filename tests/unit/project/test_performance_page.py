"""The page docs/inside/performance.md says what benchmarks/results.json says. Runs anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.__main__ import QUESTIONS, main
from benchmarks.answers import Answer, Chart, Cost, Finding, Goal, Machine, Result, Size, Spread, read_results
from benchmarks.page import ABSENT, CHARTS, GOALS, HEADLINES, PAGE, RESULTS, SUMMARY, charts, rendered
from tests.support.blocks import names

ROOT = Path(__file__).parents[3]
AGAIN = "write it with `python -m benchmarks --page`"


def test_page_has_a_block_for_each_question() -> None:
    assert names((ROOT / PAGE).read_text()) == [SUMMARY, GOALS, *(question.name for question in QUESTIONS)]


def test_page_is_that_of_the_stored_results() -> None:
    page = (ROOT / PAGE).read_text()
    assert rendered(page, read_results(ROOT / RESULTS)) == page, AGAIN


def test_each_headline_is_a_stored_finding() -> None:
    results = read_results(ROOT / RESULTS)
    for headline in HEADLINES:
        stored = [finding.what for finding in results[headline.question].answer.findings]
        assert {headline.disk, headline.s3 or headline.disk} <= set(stored), headline.asked


def test_readme_has_the_figure_of_the_page() -> None:
    (shown,) = re.findall(r"took ([\d.]+) times as long as one\s+lazy plan", (ROOT / "README.md").read_text())
    row = re.compile(r"^\| five stages, local disk: beside one lazy plan \| .+ / \*\*([\d.]+)\*\* / ", re.MULTILINE)
    assert row.findall((ROOT / PAGE).read_text()) == [shown]


def test_charts_are_those_of_the_stored_results() -> None:
    stored = {file.name: file.read_text() for file in (ROOT / CHARTS).glob("*")}
    assert charts(read_results(ROOT / RESULTS)) == stored, AGAIN


def test_answer_is_rendered_with_goals_and_without_empty_columns() -> None:
    answer = Answer(
        rounds=3,
        load=Spread(0.1, 0.25, 1.0),
        findings=(
            Finding("ours, beside by hand", Spread(1.0, 1.04, 1.2), goal=Goal("P2", 1.05)),
            Finding("ours, beside nothing", Spread(1.9, 2.0, 2.1), goal=Goal("P1", 1.1)),
        ),
        costs=(Cost("ours", Spread(0.0101, 0.0123, 0.5), {"requests": 7}), Cost("by hand", Spread(1.0, 1.25, 1234.5))),
        chart=Chart("Cost of one more", "entries", "ms", {"ours": [(1, 2), (10, 2)]}),
    )
    machine = Machine("2026-11-22", 2, 24, "3.11.7", "4.2.0", "17.0.15")
    results = {"q": Result("How long?", Size.SMALL, machine, answer)}
    page = "<!-- begin goals -->\n<!-- end goals -->\n\nText.\n<!-- begin q -->\nold\n<!-- end q -->\n"
    assert rendered(page, results) == (
        """<!-- begin goals -->
| goal | met | what | min / **median** / max |
| --- | --- | --- | --- |
| P1: ≤ 1.1 × | **no** | ours, beside nothing | 1.9 / **2** / 2.1 × |
| P2: ≤ 1.05 × | yes | ours, beside by hand | 1 / **1.04** / 1.2 × |
<!-- end goals -->

Text.
<!-- begin q -->
| what | min / **median** / max | goal | met |
| --- | --- | --- | --- |
| ours, beside by hand | 1 / **1.04** / 1.2 × | P2: ≤ 1.05 × | yes |
| ours, beside nothing | 1.9 / **2** / 2.1 × | P1: ≤ 1.1 × | **no** |

![Cost of one more](../performance/q.svg)

| one run of | min / **median** / max | requests |
| --- | --- | --- |
| ours | 10.1 / **12.3** / 500 ms | 7 |
| by hand | 1 / **1.25** / 1,234 s |  |

Measured on 2026-11-22: 2 cores, 24 GB, Python 3.11.7, Spark 4.2.0, Java 17.0.15; size `small`, 3 rounds; load 0.1 / **0.2** / 1.0.
<!-- end q -->
"""
    )


def test_summary_has_the_medians_and_says_what_is_not_measured() -> None:
    lazy = Finding("five stages, local disk: beside one lazy plan", Spread(1.2, 1.25, 1.4))
    disk = Finding("1 state, local disk: trigger until completed", Spread(0.004, 0.005, 0.1), "s")
    machine = Machine("", 1, 1, "", "", "")
    results = {
        name: Result("", Size.TINY, machine, Answer(1, Spread(0, 0, 0), (finding,), ()))
        for name, finding in (("stages", lazy), ("checkpoints", disk))
    }
    page = rendered("<!-- begin summary -->\n<!-- end summary -->\n", results)
    shown = [line.split(" | ")[1:3] for line in page.splitlines() if line.startswith("| [")]
    assert shown == [
        ["**1.25** ×", ABSENT],
        [ABSENT, ABSENT],
        ["**5** ms", ABSENT],
        [ABSENT, ABSENT],
        ["**1.1** requests/s", "**1.1** requests/s"],
    ]


def test_chart_keeps_its_text_and_is_drawn_the_same_again() -> None:
    chart = Chart("Cost of one more", "entries", "ms", {"ours": [(1, 2), (10, 2)]}, logarithmic="x")
    result = Result("", Size.TINY, Machine("", 1, 1, "", "", ""), Answer(1, Spread(0, 0, 0), (), (), chart))
    (drawn,) = charts({"q": result}).values()
    assert ">Cost of one more</text>" in drawn
    assert charts({"q": result}) == {"q.svg": drawn}


def test_tiny_sizes_do_not_overwrite_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--tiny"])
    assert "--tiny needs --out DIR" in capsys.readouterr().err
