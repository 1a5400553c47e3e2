"""What Airflow's log view shows before a person opens a fold. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterable


def unfolded(lines: Iterable[str]) -> list[str]:
    """Return the lines outside of all folds, by the rules of the log view: folds nest, and one that never ends hides the rest."""
    shown: list[str] = []
    depth = 0
    for line in lines:
        if "::group::" in line:
            depth += 1
        elif "::endgroup::" in line:
            depth = max(0, depth - 1)
        elif not depth:
            shown.append(line)
    return shown
