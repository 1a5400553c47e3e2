"""The numbers of a plan that Spark and PySpark have drawn, and those that belong to stored rows. Runs in the Spark driver.

``rand()``, ``uuid()``, ``sample()`` and the like draw a seed when a frame is built. Frames that share the seed fit together: the
two halves of ``randomSplit``, a key and its references. The next driver draws other seeds. So a stage stores its seeds. If its rows
are reused, the seeds of the new frame stand for the stored ones, and stages that are computed later get the stored ones, too.

A seed that the script has written is never taken for a drawn one: it is compared like every other literal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyspark.sql.classic.dataframe
import pyspark.sql.dataframe

from airflow_checkpoint_provider.errors import DrawsDiffer
from airflow_checkpoint_provider.spark.java_classes import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBER = re.compile(r"(?<![\w.])-?\d{11,19}(?!\w)")  # a seed has 63 bits: one of 100 million has fewer digits
FACTOR, ADDEND, MASK = 0x5DEECE66D, 0xB, (1 << 48) - 1  # of java.util.Random
MOST_STEPS = 1 << 32  # more numbers than one JVM ever draws


class _Recorded:
    """Stands for the module ``random`` in PySpark's DataFrame, which draws the seeds of ``sample``, ``sampleBy`` and ``randomSplit``."""

    def __init__(self) -> None:
        self.drawn: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(random, name)

    def randint(self, a: int, b: int) -> int:
        number = random.randint(a, b)
        self.drawn.add(number)
        return number


# A frame may be built before the ``with``, so PySpark's draws are recorded from the import on.
_by_pyspark = _Recorded()
pyspark.sql.dataframe.random = pyspark.sql.classic.dataframe.random = _by_pyspark  # type: ignore[attr-defined, assignment]


class Drawn:
    """Tells drawn numbers from others.

    A JVM draws by ``java.util.Random``. One of its numbers gives away the generator's state, and two states the number of steps
    between them. So a number was drawn in this JVM if it is few steps before the next number of one of Spark's generators. Of other
    numbers, one of 2**32 seems so.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._states: tuple[int, ...] = ()

    def numbers(self, text: str) -> Mapping[int, int]:
        """Return the drawn numbers in the text of a plan, in the order in which they come first, each with its rank."""
        candidates = dict.fromkeys(int(number) for number in NUMBER.findall(text))
        if candidates:
            self._states = tuple(_state(seed) or 0 for seed in self._next_seeds())
        return {number: rank for rank, number in enumerate(filter(self._is_drawn, candidates))}

    def _next_seeds(self) -> Iterable[int]:
        """Draw a number from each of Spark's generators: of its functions, of its utilities, and of the analysis of SQL."""
        for name in ("SparkClassUtils", "Utils"):
            scala_object = getattr(java_class(self._spark, f"org.apache.spark.util.{name}$"), "MODULE$")
            yield scala_object.random().nextLong()
        uuid = self._spark.sql("SELECT uuid()")._jdf.queryExecution().analyzed().toString()
        yield from (int(number) for number in NUMBER.findall(uuid))

    def _is_drawn(self, number: int) -> bool:
        if number in _by_pyspark.drawn:
            return True
        state = _state(number)
        return state is not None and any(_steps(state, now) < MOST_STEPS for now in self._states)


def _state(number: int) -> int | None:
    """Return the state of a ``java.util.Random`` whose ``nextLong`` has just returned ``number``; None if none can return it.

    The number has the upper 32 of the 48 bits of two states that follow each other. ``x`` and ``y`` are the lower 16 bits.
    """
    low = number & 0xFFFFFFFF
    high = ((number >> 32) + (low >> 31)) & 0xFFFFFFFF  # Java adds the lower half as a signed number
    difference = ((low << 16) - (FACTOR * (high << 16) + ADDEND)) & MASK
    for overflow in range(-1, 9):  # FACTOR * x ≡ difference + y modulo 2**48
        x, rest = divmod(difference + (overflow << 48) + FACTOR - 1, FACTOR)
        y = FACTOR - 1 - rest
        if 0 <= x < 1 << 16 and y < 1 << 16:
            return (low << 16) + y
    return None


def _steps(state: int, now: int) -> int:
    """Return after how many steps of the generator ``state`` becomes ``now``, bit by bit."""
    factor, addend, bit, steps = FACTOR, ADDEND, 1, 0
    while state != now:
        if (state ^ now) & bit:
            state = (state * factor + addend) & MASK
            steps |= bit
        addend = (factor + 1) * addend & MASK
        factor = factor * factor & MASK
        bit <<= 1
    return steps


def without_draws(text: str, drawn: Mapping[int, int]) -> str:
    """Return the text of a plan with the rank of each drawn number in the place of the number."""
    return _replaced(text, lambda number: f"drawn {drawn[number]}" if number in drawn else None)


def with_draws(text: str, replaced: Mapping[int, int]) -> str:
    """Return the text of a plan in which each number of ``replaced`` stands as its value there."""
    return _replaced(text, lambda number: str(replaced[number]) if number in replaced else None)


def _replaced(text: str, replacement: Callable[[int], str | None]) -> str:
    return NUMBER.sub(lambda match: replacement(int(match[0])) or match[0], text)


@dataclass
class SharedDraws:
    """The stored draws to which the draws of this driver's frames correspond, since the first stage of the attempt."""

    _stored: dict[int, int] = field(default_factory=dict)  # draw of this driver -> the draw that made the stages' rows
    _stage: dict[int, str] = field(default_factory=dict)  # -> the stage that has decided it
    _unknown: dict[int, str] = field(default_factory=dict)  # -> a reused stage that has another, unknown draw there

    def conflict(self, present: Sequence[int], stored: Sequence[int] | None) -> str | None:
        """Return the stage that has other draws than stored rows have; None if all fit together.

        :param stored: None if the stored rows are of another plan, so that it is unknown which draw corresponds to which.
        """
        if stored is None:
            return next((self._stage[new] for new in present if new in self._stored), None)
        pairs = zip(present, stored, strict=True)
        return next((self._stage[new] for new, old in pairs if self._stored.get(new, old) != old), None)

    def reuse(self, uid: str, present: Sequence[int], stored: Sequence[int] | None) -> None:
        """Note that the stored rows of a stage are handed out."""
        if stored is None:
            self._unknown |= dict.fromkeys(present, uid)
            return
        for new, old in zip(present, stored, strict=True):
            self._stored[new] = old
            self._stage.setdefault(new, uid)

    def compute(self, uid: str, present: Sequence[int]) -> dict[int, int]:
        """Return the draws by which a stage must be computed, by those of its frame. Raises ``DrawsDiffer``."""
        for number in present:
            if other := self._unknown.get(number):
                raise draws_differ(uid, other)
            self._stored.setdefault(number, number)
            self._stage.setdefault(number, uid)
        return {number: self._stored[number] for number in present}

    def partner(self, drawn: Mapping[int, int]) -> str | None:
        """Return the reused stage whose draws replace those of the frame; None if all are the frame's own."""
        return next((self._stage[new] for new, old in drawn.items() if new != old), None)


def draws_differ(uid: str, partner: str) -> DrawsDiffer:
    """Return the error of a stage that cannot have the same draws as its reused partner."""
    return DrawsDiffer(
        f"stage '{uid}' shares values that Spark draws with stage '{partner}', whose stored rows were reused, and cannot be given the"
        " same values: the rows would not fit together. Neither is in the newest checkpoint any more. Start the job again: it computes"
        " both",
        uids=(partner, uid),
    )
