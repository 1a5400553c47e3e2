"""The memory of a launch after a death for want of memory: which confs are raised, and to what. Runs anywhere; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_checkpoint_provider.errors import InvalidConfig

HEAPS = {"driver": "spark.driver.memory", "executor": "spark.executor.memory"}
OVERHEADS = {"driver": "spark.driver.memoryOverhead", "executor": "spark.executor.memoryOverhead"}
DRIVER_HEAP, DRIVER_OVERHEAD = "driver_heap", "driver_overhead"
EXECUTOR_HEAP, EXECUTOR_OVERHEAD = "executor_heap", "executor_overhead"
RAISED = {
    DRIVER_HEAP: HEAPS["driver"],
    DRIVER_OVERHEAD: OVERHEADS["driver"],
    EXECUTOR_HEAP: HEAPS["executor"],
    EXECUTOR_OVERHEAD: OVERHEADS["executor"],
}
"""By the cause of a death: the conf that gives more of what was used up. All causes that this version knows."""

DEFAULT_HEAP, LEAST_OVERHEAD = "1g", "384m"  # Spark's
SHARE, SHARE_ON_KUBERNETES = 0.1, 0.4  # of the heap, that Spark adds as overhead; on Kubernetes for a Python script
MOST_FACTOR = 100
_FACTOR = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*x?\s*")
_SIZE = re.compile(r"\s*([0-9]{1,18})([a-z]{0,2})\s*")
_UNITS = {
    "": 2**20,
    "b": 1,
    **{f"{name}{b}": 2 ** (10 * power) for power, name in enumerate("kmgtp", 1) for b in ("", "b")},
}


def mebibytes(text: object, name: str) -> int:
    """Return a size of memory in MiB, rounded up, as Spark reads it: ``"16g"``, ``"512m"``; a bare number is in MiB.

    ``name`` is that of the parameter or conf. Raises ``InvalidConfig``.
    """
    match = _SIZE.fullmatch(text.lower()) if isinstance(text, str) else None
    if match and match[2] in _UNITS and (size := math.ceil(int(match[1]) * _UNITS[match[2]] / 2**20)):
        return int(size)
    raise InvalidConfig(f'{name}={text!r} is not a size of memory: write a whole number with m or g, such as "16g"')


def in_words(size: int) -> str:
    """Return ``3g`` or ``1536m`` for so many MiB, as Spark and the JVM read it."""
    return f"{size}m" if size % 1024 else f"{size // 1024}g"


@dataclass(frozen=True)
class MemoryPolicy:
    """``factor`` by which memory is raised; the largest value of a conf in MiB, None for no limit."""

    factor: float
    limit: int | None = None

    def check(self, memory: Mapping[str, int]) -> None:
        """Raise ``InvalidConfig`` if the limit is below the memory that is configured, in MiB by conf."""
        conf, size = max(memory.items(), key=lambda item: item[1], default=("", 0))
        if self.limit is not None and self.limit < size:
            raise InvalidConfig(
                f"memory_limit={in_words(self.limit)!r} is below {conf}={in_words(size)}, which the task has already. Write a limit of"
                f" {in_words(size)} or more, or leave it out"
            )

    def raised(self, size: int) -> int:
        """Return ``size`` times the factor, at most the limit."""
        return self.limited(math.ceil(size * self.factor))

    def limited(self, size: int) -> int:
        return size if self.limit is None else min(size, self.limit)


def memory_policy(after_oom: object, limit: object) -> MemoryPolicy | None:
    """Return the policy of ``memory_after_oom=`` and ``memory_limit=``; None if the first is None. Raises ``InvalidConfig``."""
    if after_oom is None:
        if limit is not None:
            raise InvalidConfig(
                f'memory_limit={limit!r} has no effect without memory_after_oom=. Write memory_after_oom="1.5 x", or leave the limit out'
            )
        return None
    return MemoryPolicy(_factor(after_oom), None if limit is None else mebibytes(limit, "memory_limit"))


def _factor(value: Any) -> float:
    match = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    factor = float(match[1]) if match else value
    if isinstance(factor, int | float) and not isinstance(factor, bool) and 1 < factor <= MOST_FACTOR:
        return float(factor)
    raise InvalidConfig(
        f'memory_after_oom={value!r}: write by which factor a retry gets more memory, over 1 and at most {MOST_FACTOR}, such as "1.5 x"'
    )


def literal_memory(confs: Mapping[str, object]) -> dict[str, int]:
    """Return the memory that confs name, in MiB by conf. Texts with a template are left out. Raises ``InvalidConfig``."""
    named = {conf: confs[conf] for conf in RAISED.values() if confs.get(conf) is not None}
    return {conf: mebibytes(value, conf) for conf, value in named.items() if "{" not in str(value)}


@dataclass(frozen=True)
class NextMemory:
    """The memory of a launch, by conf, as texts of Spark.

    ``used``: all of it. ``raised``: those confs that must be submitted, because what is configured is less. ``held``: those that would be
    raised but for the limit.
    """

    used: dict[str, str] = field(default_factory=dict)
    raised: dict[str, str] = field(default_factory=dict)
    held: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemoryPlan:
    """What decides the memory of the next launch, besides the launch before it.

    ``confs`` are configured now. ``share`` of the heap is added as overhead by default. Confs in ``useless`` have no effect where the job
    runs, so they are never raised.
    """

    policy: MemoryPolicy
    confs: Mapping[str, str]
    share: float = SHARE
    useless: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ``InvalidConfig`` if the limit is below what is configured, or if that is no size of memory."""
        self.policy.check({conf: mebibytes(size, conf) for conf, size in self.next({}, ()).used.items()})

    def next(self, before: Mapping[str, str], causes: Collection[str]) -> NextMemory:
        """Return the memory of the next launch. Raises ``InvalidConfig`` if what is configured is no size of memory.

        ``before`` is the memory that the launch before it has recorded, ``causes`` are those of its deaths. What it had is kept, and each
        cause raises its conf once. A larger value that is configured meanwhile wins.
        """
        used, configured, held = dict[str, int](), dict[str, int](), []
        wanted = {RAISED[cause] for cause in causes if cause in RAISED} - {*self.useless}
        for conf in (*HEAPS.values(), *OVERHEADS.values()):
            base = configured[conf] = self._configured(conf, used)
            had = mebibytes(before[conf], conf) if conf in before else base
            size = self.policy.raised(had) if conf in wanted else self.policy.limited(had)
            if conf in wanted and max(size, base) <= had:
                held.append(conf)
            used[conf] = max(size, base)
        texts = {conf: in_words(size) for conf, size in used.items()}
        raised = {conf: text for conf, text in texts.items() if used[conf] > configured[conf]}
        return NextMemory(texts, raised, tuple(held))

    def _configured(self, conf: str, used: Mapping[str, int]) -> int:
        """Return the size that a conf has by what is configured; by default, an overhead is a share of the heap in ``used``."""
        if self.confs.get(conf):
            return mebibytes(self.confs[conf], conf)
        if conf in HEAPS.values():
            return mebibytes(DEFAULT_HEAP, conf)
        place = "driver" if conf == OVERHEADS["driver"] else "executor"
        least, share = f"spark.{place}.minMemoryOverhead", f"spark.{place}.memoryOverheadFactor"
        return max(
            int(used[HEAPS[place]] * self._share(share)), mebibytes(self.confs.get(least, LEAST_OVERHEAD), least)
        )

    def _share(self, conf: str) -> float:
        try:
            return float(self.confs.get(conf) or self.confs.get("spark.kubernetes.memoryOverheadFactor") or self.share)
        except ValueError:
            raise InvalidConfig(f"{conf} is not a number: write a share of the heap, such as 0.1") from None
