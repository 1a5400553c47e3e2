"""The job ``tests/jobs/totals.py``: its stages, which of them are saved, and whether it came to what an undisturbed run comes to. Runs on Linux."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.state import State
from tests.integration.runtime.conftest import Undisturbed
from tests.support.garbage import orphans
from tests.support.runs import Ended, Home

CLEAN, NAMED, PRICED, TOTALS = "clean", "named", "priced", "totals"


def stages(state: State) -> set[str]:
    """What the restore point holds."""
    point = state.restore_point()
    checkpoint = state.checkpoint(point.id) if point else None
    return {state.uid for state in checkpoint.states if state.kind == "stage"} if checkpoint else set()


def check(home: Home, ended: Ended, undisturbed: Undisturbed) -> None:
    """Rows and values are those of the undisturbed run, and nothing is left that nobody refers to."""
    for name in ("rows", "values"):
        assert ended.result[name] == undisturbed.ended.result[name]
    assert home.report() == undisturbed.report
    coordinator = home.coordinator()
    assert orphans(coordinator) == ()
    assert [(run.outcome, run.started_at) for run in coordinator.state.runs] == [
        ("finished", ended.result["started_at"])
    ]
