"""Helpers of the transitions: bounded lists, remembered tokens, fields of newer versions. Pure. Runs anywhere."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.records import Record
from airflow_checkpoint_provider.protocol.state import KEPT_RECORDS, KEPT_TOKENS, State

T = TypeVar("T")


def bounded(records: tuple[T, ...]) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return the records that are too old to be kept, and the newest, which are kept."""
    return records[:-KEPT_RECORDS], records[-KEPT_RECORDS:]


def remember(
    tokens: dict[str, int], text: str, number: int, *, first: Collection[int] = (), last: Collection[int] = ()
) -> dict[str, int]:
    """Add a token, and keep those with the highest numbers: a snapshot does not keep the order of a dict. If there are too many, the numbers
    ``first`` are forgotten at first, and ``last`` at last.
    """
    tokens = tokens | {text: number}
    if len(tokens) <= KEPT_TOKENS:
        return tokens

    def worth(token: tuple[str, int]) -> tuple[bool, bool, int, str]:
        text, number = token
        return number in last, number not in first, number, text

    return dict(sorted(tokens.items(), key=worth)[-KEPT_TOKENS:])


def swap(records: tuple[T, ...], old: T | None, new: T) -> tuple[T, ...]:
    """Replace the record ``old`` by ``new``."""
    return tuple(new if record is old else record for record in records)


def merged_extra(record: Record, event: e.Event) -> dict[str, Any]:
    """Merge the fields of newer versions that this version does not know, so that its snapshots keep them."""
    return {**record.extra, **event.extra}


def counted(state: State, name: str) -> dict[str, int]:
    """Return the counts with ``name`` one higher."""
    return {**state.counts, name: state.counts.get(name, 0) + 1}
