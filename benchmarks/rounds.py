"""Runs variants side by side, round by round. Runs anywhere.

Machines have good and bad minutes. So each round runs every variant once, the order moves on from round to round, and a ratio
compares two runs of one round.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.answers import Answer, Cost, Finding, Goal, Spread


@dataclass(frozen=True)
class Run:
    """One run of a variant: its seconds, and what it cost besides: requests, jobs, bytes, parts of the time."""

    seconds: float
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One of the ways that are compared. ``run`` does it once and says how long the part took that counts."""

    name: str
    run: Callable[[], Run]


@dataclass(frozen=True)
class Measured:
    """The runs of all variants: the first of each belong to the first round."""

    runs: dict[str, list[Run]]
    loads: list[float]

    @property
    def load(self) -> Spread:
        return Spread.of(self.loads)

    def seconds(self, name: str) -> Spread:
        return Spread.of(run.seconds for run in self.runs[name])

    def figures(self, name: str) -> dict[str, float]:
        runs = self.runs[name]
        return {figure: statistics.median(run.figures[figure] for run in runs) for figure in runs[0].figures}

    def costs(self) -> tuple[Cost, ...]:
        return tuple(Cost(name, self.seconds(name), self.figures(name)) for name in self.runs)

    def ratio(self, name: str, peer: str, figure: str = "") -> Spread:
        """Return how many times as long as ``peer`` it took, in the same round; or how many times its ``figure`` was."""
        pairs = zip(self.runs[name], self.runs[peer], strict=True)
        return Spread.of(
            run.figures[figure] / other.figures[figure] if figure else run.seconds / other.seconds
            for run, other in pairs
        )

    def compared(self, name: str, peer: str, goal: Goal | None = None) -> Finding:
        return Finding(f"{name}, beside {peer}", self.ratio(name, peer), goal=goal)


def joined(rounds: int, cases: Iterable[tuple[str, Measured, Iterable[Finding]]]) -> Answer:
    """Return the answer that several cases make. The name of each stands before the names of its variants and findings."""
    findings: list[Finding] = []
    costs: list[Cost] = []
    loads: list[float] = []
    for name, measured, found in cases:
        findings += (replace(finding, what=f"{name}: {finding.what}") for finding in found)
        costs += (replace(cost, variant=f"{name}: {cost.variant}") for cost in measured.costs())
        loads += measured.loads
    return Answer(rounds, Spread.of(loads), tuple(findings), tuple(costs))


def measure(variants: Sequence[Variant], rounds: int) -> Measured:
    """Run all variants ``rounds`` times. Nothing is run to warm up: a variant whose first run is not typical does so itself."""
    runs: dict[str, list[Run]] = {variant.name: [] for variant in variants}
    loads = []
    for number in range(rounds):
        loads.append(os.getloadavg()[0])
        first = number % len(variants)
        for variant in (*variants[first:], *variants[:first]):
            runs[variant.name].append(variant.run())
    return Measured(runs, loads)
