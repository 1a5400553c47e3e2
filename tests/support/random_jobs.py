"""Random small jobs: a program of stages, splits, draws, joins, loops and values, and what must hold at its end. Runs on Linux.

A program is plain data. ``play`` runs it as a script would; ``corrected`` changes one thing in it, as a person does between two
tries. What an undisturbed run always shows (``violations``) must hold after any kill and correction, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark import CheckpointedJob

ROWS = 60
DRAWINGS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "uuid": lambda df: df.withColumn("k", F.expr("uuid()")),
    "rand": lambda df: df.withColumn("k", F.rand()),
    "shuffle": lambda df: df.withColumn("k", F.shuffle(F.array(*map(F.lit, range(8))))),
    "number": lambda df: df.withColumn("k", F.monotonically_increasing_id()),
    "seed": lambda df: df.withColumn("k", F.rand(20261125000000)),
    "sample": lambda df: df.sample(0.6).withColumn("k", F.lit(0)),
}
Ids = list[int]
Reached = Callable[[str], None]
"""Called after each step of the script, with its name; may end the attempt."""


@dataclass(frozen=True)
class Step:
    """One step of a program. ``least`` filters its source, ``factor`` is a number in its formula."""

    kind: str
    name: str
    source: str = "base"
    drawing: str = "uuid"
    function: bool = False
    least: int = 0
    factor: int = 1


@dataclass(frozen=True)
class Program:
    """The steps of a script, in their order. ``folder`` holds its input, and what it writes itself."""

    folder: str
    steps: tuple[Step, ...]

    def corrected(self, chance: random.Random) -> Program:
        """Return the program with another filter, formula or drawing in one of its steps."""
        at = chance.randrange(len(self.steps))
        step = self.steps[at]
        changed = chance.choice(
            [
                replace(step, least=step.least + 7),
                replace(step, factor=step.factor + 10),
                replace(step, drawing=chance.choice(list(DRAWINGS))),
            ]
        )
        return replace(self, steps=(*self.steps[:at], changed, *self.steps[at + 1 :]))


def random_program(folder: str, chance: random.Random) -> Program:
    """Return a program of three to five steps, in which later steps may read earlier ones."""
    steps: list[Step] = []
    for number in range(chance.randint(3, 5)):
        kind = chance.choice(["split", "keyed", "loop", "written", "counted", "counted inside"])
        sources = ["base", *(f"{step.name}-a" for step in steps if step.kind == "split")]
        steps.append(
            Step(
                kind, f"{kind.replace(' ', '-')}-{number}", chance.choice(sources), chance.choice(list(DRAWINGS)),
                chance.random() < 0.4, chance.randint(0, 20), chance.randint(1, 5),
            )
        )  # fmt: skip
    return Program(folder, tuple(steps))


def make_input(spark: Any, folder: str) -> None:
    """Write the rows that programs read, in several files."""
    spark.range(ROWS).repartition(3).write.parquet(f"{folder}/in")


@dataclass
class Player:
    """One attempt of a program. ``stages`` holds the rows of all its stages, ``counts`` what the values should add up to."""

    job: CheckpointedJob
    program: Program
    reached: Reached
    stages: dict[str, DataFrame] = field(default_factory=dict)
    count: int = 0

    def play(self) -> None:
        """Run all steps."""
        self.stages["base"] = self.job.spark.read.parquet(f"{self.program.folder}/in")
        self.total = self.job.value("total", 0)
        for step in self.program.steps:
            getattr(self, step.kind.partition(" ")[0])(step)
            self.reached(step.name)

    def _stage(self, step: Step, part: str, frame: DataFrame, before: Callable[[], None] = lambda: None) -> None:
        def build() -> DataFrame:
            before()
            return frame

        uid = f"{step.name}-{part}"
        self.stages[uid] = self.job.stage(uid, build if step.function else frame)
        self.reached(uid)

    def _source(self, step: Step) -> DataFrame:
        return self.stages[step.source].select("id").where(F.col("id") >= step.least)

    def split(self, step: Step) -> None:
        for part, half in zip("ab", self._source(step).randomSplit([0.6, 0.4]), strict=True):
            self._stage(step, part, half)

    def keyed(self, step: Step) -> None:
        frame = DRAWINGS[step.drawing](self._source(step))
        for part in "ab":
            self._stage(step, part, frame.select("id", "k"))
        one, other = (self.stages[f"{step.name}-{part}"].alias(part) for part in "ab")
        self._stage(
            step, "j", one.join(other, "id", "full").select("id", F.col("a.k").alias("k"), F.col("b.k").alias("l"))
        )

    def loop(self, step: Step) -> None:
        for part in range(3):
            self._stage(step, str(part), self._source(step).where(F.col("id") % 3 == part))

    def written(self, step: Step) -> None:
        path = f"{self.program.folder}/{step.name}"
        fees = self._source(step).withColumn("fee", F.col("id") * step.factor)
        fees.coalesce(1).write.mode("overwrite").parquet(path)
        self._stage(step, "t", self.job.spark.read.parquet(path).agg(F.sum("fee").alias("fee")))

    def counted(self, step: Step) -> None:
        """Add to the value, between two stages or inside of a function."""
        count = self._source(step).count() * step.factor
        self.count += count

        def add() -> None:
            self.total.set(self.total.get() + count)

        if step.kind == "counted":
            add()
        inside = step.kind == "counted inside"
        self._stage(replace(step, function=inside), "n", self._source(step), add if inside else lambda: None)

    def violations(self) -> list[str]:
        """Return what does not hold although it holds in every undisturbed run of the program."""
        found = [text for step in self.program.steps for text in getattr(self, f"_{step.kind.partition(' ')[0]}")(step)]
        if self.total.get() != self.count:
            found.append(f"the value is {self.total.get()}, the rows that it counted are {self.count}")
        return found

    def _ids(self, uid: str) -> Ids:
        return sorted(row["id"] for row in self.stages[uid].collect())

    def _expected(self, step: Step) -> Ids:
        return sorted(row["id"] for row in self._source(step).collect())

    def _split(self, step: Step) -> list[str]:
        halves = self._ids(f"{step.name}-a") + self._ids(f"{step.name}-b")
        return [] if sorted(halves) == self._expected(step) else [f"{step.name}: the halves are not the whole"]

    def _keyed(self, step: Step) -> list[str]:
        apart = self.stages[f"{step.name}-j"].where(~F.col("k").eqNullSafe(F.col("l"))).count()
        return [f"{step.name}: {apart} keys differ"] if apart else []

    def _loop(self, step: Step) -> list[str]:
        parts = [number for part in range(3) for number in self._ids(f"{step.name}-{part}")]
        return [] if sorted(parts) == self._expected(step) else [f"{step.name}: the parts are not the whole"]

    def _written(self, step: Step) -> list[str]:
        found = self.stages[f"{step.name}-t"].collect()[0]["fee"]
        expected = sum(self._expected(step)) * step.factor
        return [] if found == expected else [f"{step.name}: the sum is {found}, not {expected}"]

    def _counted(self, step: Step) -> list[str]:
        same = self._ids(f"{step.name}-n") == self._expected(step)
        return [] if same else [f"{step.name}: other rows than its source"]
