"""A forked child of a driver is not the driver: its end is no end of the attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.runs import Home


@pytest.mark.slow  # tests/unit/spark/test_job.py: a forked child ends no run, and may not call the job
def test_forked_children_do_not_end_the_attempt_of_their_parent(tmp_path: Path) -> None:
    home = Home(tmp_path, "forks.py")
    ended = home.run()
    assert ended.code == 0, ended.log[-5000:]
    assert ended.result == {"ends": [4, 1, 7, 5, 0], "total": 10, "attempt": 1}
    assert "FENCED" not in ended.log
    (attempt,) = home.coordinator().state.attempts
    assert attempt.outcome == "finished"
