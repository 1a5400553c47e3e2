"""How fast are the rows of a stage stored? Beside a plain write of the same rows. Runs on Linux.

All in one Spark session, which is warm, with the same codec. The time of a stage is that of ``job.stage``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.answers import Answer, Finding, Goal, Question, Size, Spread
from benchmarks.drivers import LOCAL, drivers_on
from benchmarks.rounds import Measured, Run, Variant, joined, measure

KEYS = {Size.TINY: (100_000,), Size.SMALL: (1_000_000,), Size.FULL: (1_000_000, 5_000_000)}
ROUNDS = {Size.TINY: 2, Size.SMALL: 12, Size.FULL: 20}
WARM = {Size.TINY: 1, Size.SMALL: 5, Size.FULL: 5}  # runs of each variant before
OURS, RAW, COUNTED, SPARK_CHECKPOINT = "ours", "raw", "raw, counted", "checkpoint()"
SIZE = "MB"
FLINK = 3.6  # million keys a second, written to a canonical savepoint


@contextmanager
def asked(size: Size, keys: int) -> Iterator[Callable[[str], Run]]:
    """Yield the function that writes in one way, in the session of one driver."""
    with drivers_on(LOCAL, size) as drivers, drivers.started("snapshots.py", drivers.new_root(), str(keys)) as driver:

        def run(way: str) -> Run:
            told = driver.ask(way)
            return Run(told["seconds"], {SIZE: told["bytes"] / 1e6})

        yield run


def measured(size: Size, keys: int) -> Measured:
    with asked(size, keys) as run:
        variants = [Variant(name, partial(run, name)) for name in (OURS, RAW, COUNTED, SPARK_CHECKPOINT)]
        measure(variants, WARM[size])
        return measure(variants, ROUNDS[size])


def compared(found: Measured, keys: int) -> list[Finding]:
    pairs = zip(found.runs[OURS], found.runs[RAW], strict=True)
    speed = [(run.figures[SIZE] / run.seconds) / (raw.figures[SIZE] / raw.seconds) for run, raw in pairs]
    rows, plain = ([keys / 1e6 / run.seconds for run in found.runs[name]] for name in (OURS, RAW))
    return [
        Finding("MB/s of a stage, beside a plain write", Spread.of(speed), goal=Goal("P3", at_least=0.95)),
        Finding("rows of a stage", Spread.of(rows), "M keys/s", Goal("P3", at_least=1.5 * FLINK),
                known=f"Flink 2, canonical savepoint, another run: {FLINK}"),
        Finding("rows of a plain write", Spread.of(plain), "M keys/s"),
        Finding("seconds of a plain write that counts its rows, beside a plain write", found.ratio(COUNTED, RAW)),
        Finding("seconds of a stage, beside checkpoint()", found.ratio(OURS, SPARK_CHECKPOINT)),
        Finding("seconds of a plain write, beside checkpoint()", found.ratio(RAW, SPARK_CHECKPOINT)),
    ]  # fmt: skip


def answer(size: Size) -> Answer:
    cases = [(keys, measured(size, keys)) for keys in KEYS[size]]
    return joined(ROUNDS[size], ((f"{keys / 1e6:g} M keys", found, compared(found, keys)) for keys, found in cases))


QUESTION = Question("snapshots", "How fast are the rows of a stage stored?", answer)
