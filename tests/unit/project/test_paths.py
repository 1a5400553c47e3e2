"""How often the main path turns back. Runs anywhere."""

from __future__ import annotations

from benchmarks.paths import barrier


def test_path_from_a_barrier_to_its_sealed_checkpoint_stays_straight() -> None:
    """``python -m benchmarks.paths`` shows where it leads. Before a function is added to it, straighten the path."""
    assert barrier().returns < 280
