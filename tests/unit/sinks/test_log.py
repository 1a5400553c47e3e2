"""Tests of whose rows the log of a target holds. Run anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.sinks.log import RunOfSink, same_history

BY = RunOfSink(
    history="file:///shared/checkpoints/jobs/daily/runs/monday", incarnation="1nc", run="monday", uid="report"
)
MOVED = "s3://lake/jobs/daily/runs/monday"


@pytest.mark.parametrize(
    ("other", "history", "run"),
    [
        pytest.param({}, True, True, id="the same"),
        pytest.param({"generation": 1}, True, True, id="a clear"),
        pytest.param({"run": "tuesday"}, True, False, id="another run of the history"),
        pytest.param({"uid": "orders"}, True, False, id="another sink"),
        pytest.param({"history": MOVED}, True, True, id="its root was moved"),
        pytest.param({"history": "file:///data/jobs/x/job/jobs/daily/runs/monday"}, True, True, id="into another job"),
        pytest.param({"history": MOVED, "incarnation": "0ther"}, False, False, id="another life below another root"),
        pytest.param({"history": "file:///shared/checkpoints/jobs/daily/job"}, False, False, id="a copy as another"),
        pytest.param({"history": MOVED, "incarnation": ""}, False, False, id="moved, of an earlier version"),
        pytest.param({"incarnation": ""}, True, True, id="of an earlier version"),
        pytest.param({"incarnation": "0ther"}, False, True, id="deleted by hand and begun anew"),
    ],
)
def test_rows_belong_to_a_history_wherever_its_root_is(other: dict[str, Any], history: bool, run: bool) -> None:
    found = replace(BY, **other)
    for one, two in ((BY, found), (found, BY)):
        assert (same_history(one, two), one.same_run(two)) == (history, run)


def test_folders_that_are_no_histories_are_compared_as_they_are() -> None:
    one, other = (replace(BY, history=f"file:///{root}/monday") for root in ("lake", "data"))
    assert not same_history(one, other)
