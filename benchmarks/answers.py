"""Questions, their answers as data, and the file ``results.json`` that holds the answers. Runs anywhere."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter


class Size(enum.StrEnum):
    """How much is measured: the names of what ``python -m benchmarks`` can be asked for."""

    TINY = "tiny"
    """Seconds: proves that the benchmarks work. The figures say nothing."""
    SMALL = "small"
    """All questions together take a few minutes on two cores."""
    FULL = "full"


@dataclass(frozen=True)
class Spread:
    """What several rounds gave."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        values = list(values)
        return cls(min(values), statistics.median(values), max(values))


@dataclass(frozen=True)
class Goal:
    """A bound for the median: a largest value, or a smallest one. ``name`` is that of the goal, e.g. ``"P5"``."""

    name: str
    at_most: float | None = None
    at_least: float | None = None

    def met_by(self, value: float) -> bool:
        enough = self.at_least is None or value >= self.at_least
        return enough and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True)
class Finding:
    """One row of the answer, e.g. ``"1 state, local disk: beside four raw puts"``, in ``unit``: ``"×"``, ``"s"`` or a noun.

    ``known`` is a figure of another system, measured in another run.
    """

    what: str
    value: Spread
    unit: str = "×"
    goal: Goal | None = None
    known: str = ""

    @property
    def met(self) -> bool:
        return self.goal is None or self.goal.met_by(self.value.median)


@dataclass(frozen=True)
class Cost:
    """What one variant took. ``figures`` are medians: what depends on no machine (requests, jobs, bytes), or shows where the time
    goes."""

    variant: str
    seconds: Spread
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    """Lines over ``x``. Each line has a name and its points; ``logarithmic`` is for axes, of ``"x"`` and ``"y"``."""

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]
    logarithmic: str = ""


@dataclass(frozen=True)
class Answer:
    """What a question found out: first the findings, then what they are made of."""

    rounds: int
    load: Spread  # the machine's, over the rounds
    findings: tuple[Finding, ...]
    costs: tuple[Cost, ...]
    chart: Chart | None = None


@dataclass(frozen=True)
class Machine:
    """Where and when an answer was measured."""

    day: str
    cores: int
    memory_gb: int
    python: str
    spark: str
    java: str


@dataclass(frozen=True)
class Result:
    """An answer as it is stored."""

    title: str
    size: Size
    machine: Machine
    answer: Answer


@dataclass(frozen=True)
class Question:
    """What a module of this package answers. ``name`` is that of its block in docs/inside/performance.md and of its chart."""

    name: str
    title: str
    run: Callable[[Size], Answer]


Results = dict[str, Result]  # by the name of the question
_RESULTS = TypeAdapter(Results)


def read_results(file: Path) -> Results:
    """Return the stored results; none if there is no such file."""
    return _RESULTS.validate_json(file.read_bytes()) if file.exists() else {}


def write_results(file: Path, results: Results) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_RESULTS.dump_json(dict(sorted(results.items())), indent=2) + b"\n")
