"""Durations, sizes, times and columns as people read them. Runs anywhere; no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from airflow_checkpoint_provider.protocol.metadata import Measures
from airflow_checkpoint_provider.protocol.state import Attempt, Checkpoint

NONE = "–"  # noqa: RUF001 - a dash, not a minus
MINUTE, HOUR, DAY = 60, 3600, 86400
CODE_COLUMN = 112
LABEL = 12
ENDED = {
    "finished": "finished", "failed": "failed", "cancelled": "was cancelled", "suspended": "was suspended", "lost": "was lost",
}  # fmt: skip


def duration(seconds: float) -> str:
    """``0.3 s``, ``31 s``, ``1 min 15 s``, ``37 min``, ``4 h 14 min``, ``3 d 4 h``; what is below zero is zero."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < 10 * MINUTE:
        return _two(whole, MINUTE, "min", 1, "s")
    whole = round(seconds / MINUTE) * MINUTE
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < 2 * DAY:
        return _two(whole, HOUR, "h", MINUTE, "min")
    return _two(round(seconds / HOUR) * HOUR, DAY, "d", HOUR, "h")


def _two(whole: int, big: int, big_name: str, small: int, small_name: str) -> str:
    rest = whole % big // small
    return f"{whole // big} {big_name}" + (f" {rest} {small_name}" if rest else "")


def ago(seconds: float) -> str:
    """As ``duration``, in whole seconds at least."""
    return f"{round(seconds)} s" if seconds < MINUTE - 0.5 else duration(seconds)


def brief(seconds: float) -> str:
    """As ``duration``, but ``1 h 12``: for lists, where the unit of the rest is clear."""
    text = duration(seconds)
    return text.removesuffix(" min") if " h " in text else text


def size(count: int) -> str:
    """Bytes: ``512 B``, ``3.4 KiB``, ``61.2 GiB``."""
    units = iter(("B", "KiB", "MiB", "GiB", "TiB"))
    value, unit = float(count), next(units)
    while value >= 1023.95 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def clock(at: str) -> str:
    """``02:14:33`` of a moment as the journal writes it; empty for none."""
    return _moment(at).strftime("%H:%M:%S") if at else ""


def day_and_time(at: str) -> str:
    """``2026-11-20 02:14``; empty for none."""
    return _moment(at).strftime("%Y-%m-%d %H:%M") if at else ""


def when(at: str, now: str) -> str:
    """The time of day, with the date where that is another day than ``now``."""
    same = bool(at and now) and _moment(at).date() == _moment(now).date()
    return clock(at) if same else day_and_time(at)


def between(begin: str, end: str) -> float:
    """Seconds from one moment to another; 0 if either is unknown, or if clocks disagree about their order."""
    return max(0.0, (_moment(end) - _moment(begin)).total_seconds()) if begin and end else 0.0


def _moment(at: str) -> datetime:
    return datetime.fromisoformat(at).astimezone(UTC)


def plural(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def some(names: Sequence[str], at_most: int = 10) -> str:
    """``a, b, c and 4 more``."""
    shown = ", ".join(names[:at_most])
    return f"{shown} and {len(names) - at_most} more" if len(names) > at_most else shown


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as they must be, two blanks apart."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


# -- lines -------------------------------------------------------------------------------------------------------------


def coded(text: str, code: str, column: int = 0) -> str:
    """``text`` and its code, which stands in ``column`` or, behind a longer text, two blanks after it."""
    return f"{text:<{max(0, column - 2)}}  [{code}]"


def headline(text: str, code: str) -> str:
    return coded(text, code, CODE_COLUMN)


def labelled(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}"


# -- words -------------------------------------------------------------------------------------------------------------


def at_barrier(barrier: str) -> str:
    """``stage 'clean'``, or what the other barriers are."""
    return {"": "a barrier", "end": "the end of the script", "checkpoint()": "job.checkpoint()"}.get(barrier, barrier)


def sealed(at: str) -> str:
    """``at`` is empty for what is known by its directory alone."""
    return f"sealed {at}" if at else "a savepoint"


def exit_code(attempt: Attempt) -> str:
    return f"exit code {attempt.exit_code}" if attempt.exit_code is not None else "exit code unknown"


def new_in(checkpoint: Checkpoint) -> tuple[Measures, ...]:
    """The measures of the states that were snapshotted for this checkpoint."""
    return tuple(one.measures for one in checkpoint.states if one.new)


def sync_s(checkpoint: Checkpoint) -> float:
    return sum(one.sync_s for one in new_in(checkpoint))


def new_bytes(checkpoint: Checkpoint) -> int:
    return sum(one.new_bytes for one in new_in(checkpoint))
