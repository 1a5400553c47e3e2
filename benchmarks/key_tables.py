"""What does a snapshot of a table by key take? Beside Spark's own write of the same rows. Runs on Linux.

All rows at once, then one row in a hundred. Each run is a fresh driver. The time is that of the barrier alone; the bytes are those of its files.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.answers import Answer, Finding, Question, Size
from benchmarks.drivers import LOCAL, Drivers, drivers_on
from benchmarks.jobs.key_table import CHANGE, CHANGED, PLAIN, WHOLE
from benchmarks.rounds import Run, Variant, joined, measure

KEYS = {Size.TINY: 2_000, Size.SMALL: 1_000_000, Size.FULL: 5_000_000}
ROUNDS = {Size.TINY: 1, Size.SMALL: 2, Size.FULL: 3}
BYTES, READ, JOBS = "MB", "s to read all", "Spark jobs"


def run(drivers: Drivers, size: Size, variant: str, sums: dict[str, int]) -> Run:
    """Run one way, and note the sum of its rows in ``sums``."""
    root = drivers.new_root()
    driver = drivers.run("key_table.py", variant, root, str(KEYS[size]))
    figures = {
        BYTES: written(Path(root), variant) / 1e6,
        READ: driver.between("stored", "read"),
        JOBS: float(driver.result["jobs"]),
    }
    for folder in (root, f"{root}-plain"):
        drivers.remove(folder)
    sums[variant] = driver.result["rows"]
    return Run(driver.between("begun", "stored"), figures)


def written(root: Path, variant: str) -> int:
    """Return the bytes of the newest rows."""
    folder = Path(f"{root}-plain")
    if variant != PLAIN:
        folder = max(
            (root / "jobs" / "key_table" / "job" / "state" / "table").iterdir(), key=lambda one: one.stat().st_mtime_ns
        )
    return sum(file.stat().st_size for file in folder.glob("part-*"))


def answer(size: Size) -> Answer:
    """Run all ways. Raises ``AssertionError`` if a read returns other rows."""
    sums: dict[str, int] = {}
    with drivers_on(LOCAL, size) as drivers:
        variants = [Variant(name, partial(run, drivers, size, name, sums)) for name in (PLAIN, WHOLE, CHANGE)]
        found = measure(variants, ROUNDS[size])
    total, changed = sum(range(KEYS[size])), 2 * sum(range(0, KEYS[size], CHANGED))
    assert sums == {PLAIN: total, WHOLE: total, CHANGE: total - changed}, sums
    findings = [
        Finding("all rows, beside Spark's own write", found.ratio(WHOLE, PLAIN)),
        Finding("one row in a hundred, beside all rows", found.ratio(CHANGE, WHOLE)),
        Finding("one row in a hundred, its bytes beside all rows", found.ratio(CHANGE, WHOLE, BYTES)),
        Finding("a read after that, beside one of all rows", found.ratio(CHANGE, WHOLE, READ)),
    ]
    return joined(ROUNDS[size], [(f"{KEYS[size]:,} keys, {LOCAL}", found, findings)])


QUESTION = Question("keys", "What does a snapshot of a table by key take?", answer)
