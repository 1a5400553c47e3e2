"""What the demo prints. Runs on Linux."""

from __future__ import annotations


def is_shown(told: str) -> None:
    """Check that the driver was killed, and that the retry went on to the report of an undisturbed run."""
    assert "stages clean and weather were complete" in told
    assert "RESTORE flights_etl.delays" in told
    assert "CHECKPOINTS flights_etl.delays" in told
    assert "restore saved" in told
    assert "The reports are equal: 239 rows" in told
