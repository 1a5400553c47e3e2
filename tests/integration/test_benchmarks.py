"""The benchmarks, run with tiny sizes: their answers are complete, and cost the requests that are promised."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_checkpoint_provider.protocol.keys import SEGMENT
from benchmarks.__main__ import CHECKOUT, QUESTIONS
from benchmarks.answers import Results, read_results
from benchmarks.page import PAGE, RESULTS, charts, rendered

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the results and the page."""
    folder = tmp_path_factory.mktemp("benchmarks")
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--out", str(folder)]
    ran = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=800, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(scope="module")
def results(out: Path) -> Results:
    return read_results(out / RESULTS)


def test_each_question_is_answered_and_shown(out: Path, results: Results) -> None:
    assert sorted(results) == sorted(question.name for question in QUESTIONS)
    for result in results.values():
        assert result.answer.findings
        assert all(cost.seconds.min > 0 for cost in result.answer.costs)
    page = (out / PAGE).read_text()
    assert "Not measured yet" not in page
    assert rendered(page, results) == page
    for name, chart in charts(results).items():
        assert (out / "docs" / "performance" / name).read_text() == chart


def test_checkpoint_costs_seven_requests_however_many_states(results: Results) -> None:
    """And so do four puts cost four."""
    requests = {cost.variant: cost.figures["requests"] for cost in results["checkpoints"].answer.costs}
    assert len(requests) == 12
    for variant, count in requests.items():
        assert count == (7 if variant.startswith("a checkpoint") else 4), variant


def test_one_more_checkpoint_costs_seven_requests_after_any_history(results: Results) -> None:
    """Its acknowledgement and completion alone cost five. A fresh start reads a logarithm of the history and one segment."""
    requests = {cost.variant: cost.figures["requests"] for cost in results["histories"].answer.costs}
    for variant, count in requests.items():
        if variant.startswith("one more checkpoint"):
            assert count == 7, variant
        elif variant.startswith("a fresh start"):
            assert count <= 2 * math.log2(1000 / SEGMENT) + SEGMENT + 4, variant
        else:
            assert count == 5, variant
    assert len(requests) == 12
