"""Spark's progress bar, under ``spark-submit`` in a terminal and elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.drivers import ROOT
from tests.support.runs import Home

CONF = "spark.ui.showConsoleProgress"
TERMINAL = (sys.executable, str(ROOT / "tests" / "support" / "terminal.py"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("below", "conf", "shown"),
    [
        pytest.param(TERMINAL, None, True, id="in a terminal"),
        pytest.param(TERMINAL, "false", False, id="in a terminal, but switched off"),
        pytest.param((), None, False, id="without a terminal"),
    ],
)
def test_bar_is_shown_only_in_a_terminal_while_a_stage_is_computed(
    tmp_path: Path, below: tuple[str, ...], conf: str | None, shown: bool
) -> None:
    home = Home(tmp_path / "home", "slow.py")
    with home.started(submit=True, confs={CONF: conf}, below=below) as running:
        ended = running.wait()
    assert ended.code == 0, ended.log
    assert ended.computed == ["slow"]
    assert ("[Stage 0:" in ended.log) == shown, ended.log
    lines = ended.log.splitlines()
    assert any(line.startswith("chk-1 completed at stage 'slow'") for line in lines), "the bar is cleared before it"
