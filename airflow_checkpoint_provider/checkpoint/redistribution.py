"""The items of a list state, handed out to another number of subtasks, with Flink's results. Pure. Runs anywhere.

``old`` holds the items of each old subtask, in the subtasks' order; so does what is returned for the new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import TypeVar

from airflow_checkpoint_provider.checkpoint.errors import InvalidConfig

T = TypeVar("T")
Lists = list[list[T]]


def split(old: Sequence[Sequence[T]], parallelism: int) -> Lists[T]:
    """Each item to one subtask, in their order and evenly: the first subtasks get one more where it does not come out even.

    As long as the number of subtasks stays, each keeps its own, however uneven.
    """
    _check(old, parallelism)
    if len(old) == parallelism:
        return [list(items) for items in old]
    everything = chain.from_iterable(old)
    share, more = divmod(sum(map(len, old)), parallelism)
    return [list(islice(everything, share + (index < more))) for index in range(parallelism)]


def union(old: Sequence[Sequence[T]], parallelism: int) -> Lists[T]:
    """All items to each subtask, whether their number changed or not."""
    _check(old, parallelism)
    return [list(chain.from_iterable(old)) for _ in range(parallelism)]


def broadcast(old: Sequence[Sequence[T]], parallelism: int) -> Lists[T]:
    """The old subtasks hold the same: each keeps its own, and further ones get copies, in turn."""
    _check(old, parallelism)
    return [list(old[index % len(old)]) for index in range(parallelism)]


def _check(old: Sequence[Sequence[T]], parallelism: int) -> None:
    if parallelism < 1:
        raise InvalidConfig(f"parallelism={parallelism}: write 1 at least")
    if not old:
        raise InvalidConfig("a list state of no subtask was given; write one empty list for a subtask without items")
