"""The job ``tests/jobs/totals.py``: its stages, which of them are saved, and whether it came to what an undisturbed run comes to. Runs on Linux."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from airflow_checkpoint_provider.protocol.state import State
from tests.integration.runtime.conftest import Undisturbed
from tests.support.garbage import orphans
from tests.support.runs import Ended, Home

CLEAN, NAMED, PRICED, TOTALS = "clean", "named", "priced", "totals"
VALUES = [[CLEAN, NAMED, PRICED, TOTALS], 3 * 16_000 + 7]
"""Of a run that nobody disturbs."""


def report() -> list[dict[str, Any]]:
    """Return the report of a run that nobody disturbs, computed without Spark."""
    sold = [number for number in range(20_000) if number % 5]
    shops = [[number for number in sold if number % 7 == shop] for shop in range(7)]
    return [
        {
            "shop": f"shop {shop}",
            "turnover": sum(number % 11 * Decimal("1.25") for number in numbers),
            "sales": len(numbers),
            "last": datetime.fromtimestamp(numbers[-1] * 3600, UTC).replace(tzinfo=None),
        }
        for shop, numbers in enumerate(shops)
    ]


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


def by_shop(home: Home) -> list[dict[str, Any]]:
    """Return the report of a home, in the order of ``report``."""
    return sorted(home.report(), key=lambda row: str(row["shop"]))


def killed_job_continues(home: Home) -> None:
    """Kill a driver when its third stage is written; the next one computes it again, and the stages after it."""
    killed = home.run(("kill", "stage/priced/rows-written"))
    code = 1 if home.elsewhere else -9  # that of spark-submit
    assert (killed.code, set(killed.computed)) == (code, {CLEAN, NAMED, PRICED}), killed.log
    assert [attempt.outcome for attempt in home.coordinator().state.attempts] == [None]
    ended = home.run(submit=True)
    assert ended.code == 0, ended.log
    assert set(ended.computed) == {PRICED, TOTALS}
    assert ended.result["values"] == VALUES
    assert sum(row["sales"] for row in home.report()) == 16_000
