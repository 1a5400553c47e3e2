"""Offsets of Kafka as Spark writes them, and the rows that a broker does not have any more. Runs anywhere.

``{"orders": {"0": 120}}`` says by topic and partition which offset a query reads next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Partition = tuple[str, int]
"""A topic, and the number of a partition."""
GREATEST = 2**63  # Kafka counts below it


def kafka_offsets(text: str | None) -> dict[Partition, int] | None:
    """Return the offsets by partition; None if ``text`` is not what Spark writes for Kafka."""
    try:
        return dict(_each(json.loads(text or "")))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _each(topics: Any) -> Iterator[tuple[Partition, int]]:
    for topic, partitions in topics.items():
        for number, offset in partitions.items():
            if type(offset) is not int or not 0 <= offset < GREATEST:
                raise ValueError(f"{offset!r} is not an offset")
            yield (topic, int(number)), offset


@dataclass(frozen=True)
class Gap:
    """A partition in which a query would read on at ``offset``, and which has no rows there. It has those from ``earliest`` up to
    before ``latest``; None: the source has no such partition, or its end is not known.
    """

    partition: Partition
    offset: int
    earliest: int | None
    latest: int | None = None

    def __str__(self) -> str:
        topic, number = self.partition
        name = f"{topic}-{number}"
        if self.earliest is None:
            return f"{name} is not there, or the source does not name it (the query reads on at offset {self.offset})"
        if self.offset < self.earliest:
            gone = self.earliest - self.offset
            lost = "1 offset is" if gone == 1 else f"{gone} offsets are"
            return f"{name} begins with offset {self.earliest}, and the query reads on at {self.offset}: {lost} gone"
        return (
            f"{name} ends before offset {self.latest}, and the query reads up to {self.offset}: the topic was created again, or has lost its"
            " newest rows"
        )


def gaps(
    needed: Mapping[Partition, int],
    earliest: Mapping[Partition, int],
    latest: Mapping[Partition, int] | None = None,
    until: Mapping[Partition, int] | None = None,
) -> list[Gap]:
    """Return the partitions that do not have all rows from ``needed`` on, in their order. A partition that ``needed`` does not name must
    begin with 0.

    ``latest`` is where they end, if that is known. ``until`` is the end of a batch that begins at ``needed``, if one has begun.
    """
    ends = until or {}
    starts = dict.fromkeys((*earliest, *ends), 0) | dict(needed)
    return [
        gap
        for partition, offset in sorted(starts.items())
        if (gap := _gap(partition, offset, earliest, latest, ends.get(partition, offset)))
    ]


def deleted(needed: str, earliest: str) -> list[Gap]:
    """Return the partitions whose rows after the offsets ``needed`` Kafka had deleted by its ``earliest`` offsets.

    A partition that only one of them names proves nothing: the source of another script may name other topics.
    """
    reads, begins = kafka_offsets(needed) or {}, kafka_offsets(earliest) or {}
    return [gap for gap in gaps(reads, begins) if gap.partition in reads and gap.earliest is not None]


def _gap(
    partition: Partition,
    offset: int,
    earliest: Mapping[Partition, int],
    latest: Mapping[Partition, int] | None,
    until: int,
) -> Gap | None:
    begins = earliest.get(partition)
    ends = latest.get(partition) if latest is not None else None
    if begins is None or offset < begins:
        return Gap(partition, offset, begins, ends)
    return Gap(partition, until, begins, ends) if ends is not None and ends < until else None
