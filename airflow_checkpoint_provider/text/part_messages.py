"""Log lines of a driver about stages in parts. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from airflow_checkpoint_provider.errors import printable, shortened
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.part_records import PartsDetail, PartsProgress
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.text import state_messages
from airflow_checkpoint_provider.text.units import plural

LONGEST_PART = 60  # characters of a part's value in a line


OF_STAGE = re.compile(r"part (\d+) of (\d+) of stage '.*'", re.DOTALL)


def number_of(number: int, total: int) -> str:
    """Return ``part 37 of 365``."""
    return f"part {number} of {total}"


def next_part(parts: PartsProgress) -> str:
    """Return the part that is computed after those that are done."""
    return number_of(parts.done + 1, parts.total)


def barrier(parts: PartsProgress, uid: str) -> str:
    """Return the name of the barrier at the end of the next part."""
    return f"{next_part(parts)} of stage '{uid}'"


def is_between(barrier: str) -> bool:
    """Return whether a barrier is the end of a part that is not the last one."""
    found = OF_STAGE.fullmatch(barrier)
    return bool(found and found[1] != found[2])


def shown(value: Any) -> str:
    """Return the value of a part for one line."""
    return printable(shortened(canonical(value).decode(), LONGEST_PART))


def parts_reused(
    stage: StateSnapshot, parts: PartsProgress, why: str = "", *, restored: str = "", unseen: str = ""
) -> str:
    """Say which parts of a stage were kept; the arguments are those of ``stage_reused``."""
    what = f"stage '{stage.uid}': {parts} reused"
    return state_messages.reused(stage, what, plural(stage.rows, "row"), why, restored=restored, unseen=unseen)


def list_changed(stored: PartsDetail, values: Sequence[Any], by: str | None) -> str:
    """Return how the parts differ from those of the stored rows; empty if they are the same."""
    if stored.by != by:
        before, now = (f"by column `{name}`" if name else "by a list" for name in (stored.by, by))
        return f"it was cut {before}, and is now {now}"
    old, new = ([canonical(value) for value in each] for each in (stored.values, values))
    if old == new:
        return ""
    first = next(
        (i for i, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), min(len(old), len(new))
    )
    before, now = (shown(each[first]) if first < len(each) else "none" for each in (stored.values, values))
    return f"its list of parts changed, {len(old)} → {len(new)} of them: {number_of(first + 1, len(new))} was {before}, and is {now}"
