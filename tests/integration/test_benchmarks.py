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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the results and the page."""
    folder = tmp_path_factory.mktemp("benchmarks")
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--out", str(folder)]
    ran = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=1700, check=False)
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
    """And four puts cost four."""
    requests = {cost.variant: cost.figures["requests"] for cost in results["checkpoints"].answer.costs}
    assert len(requests) == 18
    for variant, count in requests.items():
        assert count == (4 if variant.endswith("its four puts") else 7), variant


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


def figures(results: Results, question: str, figure: str) -> dict[str, float]:
    """Return a figure of each variant that has it."""
    costs = results[question].answer.costs
    return {cost.variant: cost.figures[figure] for cost in costs if figure in cost.figures}


def test_job_starts_as_many_spark_jobs_as_one_whose_stages_are_written_by_hand(results: Results) -> None:
    """Spark itself may start one more or less: it plans a join anew by what it has seen. One more a stage would be five."""
    jobs = figures(results, "stages", "Spark jobs")
    for place in ("local disk", "local disk, a Python UDF", "S3"):
        assert abs(jobs[f"five stages, {place}: ours"] - jobs[f"five stages, {place}: by hand"]) <= 1


def test_stage_on_s3_costs_at_most_thirty_requests_more_than_one_written_by_hand(results: Results) -> None:
    """And so does the start of the job."""
    requests = figures(results, "stages", "requests")
    assert requests["five stages, S3: ours"] - requests["five stages, S3: by hand"] <= 6 * 30


def test_retry_starts_spark_jobs_only_for_the_work_that_was_left(results: Results) -> None:
    """The five tables have their schemas inferred, by one job each, if the stages are no functions."""
    jobs = figures(results, "retry", "Spark jobs")
    left = jobs["only the work that was left"]
    assert jobs["the retry, stages as functions"] == left
    assert jobs["the retry"] == left + 5


def test_start_of_a_driver_is_broken_down(results: Results) -> None:
    assert len(figures(results, "startup", "enter, ms")) == 4
    assert all(count > 0 for count in figures(results, "startup", "requests to enter").values())


def test_batch_starts_one_spark_job_with_savepoints_and_without_this_package(results: Results) -> None:
    for question in ("hot_savepoints", "takeovers"):
        assert {*figures(results, question, "Spark jobs a batch").values()} == {1}


def test_checkpoint_copies_only_what_one_batch_wrote(results: Results) -> None:
    files = figures(results, "hot_savepoints", "files")
    for place in ("local disk", "S3"):
        whole = files[f"0.02 M keys, {place}: a savepoint"]
        assert files[f"0.02 M keys, {place}: a checkpoint one batch after another"] < whole / 2
