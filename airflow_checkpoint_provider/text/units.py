"""Durations, sizes, times, columns and words that all texts share. Runs anywhere; no clock."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord

NONE = "–"  # noqa: RUF001 - a dash, not a minus
MINUTE, HOUR, DAY = 60, 3600, 86400
CODE_COLUMN = 112
LABEL = 12
LONGEST_VALUE = 200  # characters of a value in a table
ENDED = {
    "finished": "finished",
    "failed": "failed",
    "cancelled": "was cancelled",
    "suspended": "was suspended",
    "lost": "was lost",
}
_FOR_ONE = {"are": "is", "were": "was", "have": "has", "stay": "stays", "They": "It", "they": "it", "them": "it"}
TONES = {
    "running": "good",
    "finished": "good",
    "completed": "good",
    "restored": "good",
    "pending": "busy",
    "launched": "busy",
    "suspended": "busy",
    "aborted": "bad",
    "failed": "bad",
    "lost": "bad",
}
"""The tones of states. A tone decides the colour on a page and on a terminal; any other state is quiet."""
NO_HEARTBEAT = ", no heartbeat"
"""After the state of a job whose driver is on record as alive."""


def duration(seconds: float) -> str:
    """Return ``0.3 s``, ``31 s``, ``1 min 15 s``, ``37 min``, ``4 h 14 min`` or ``3 d 4 h``; at least zero."""
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
    """Return a duration without parts of seconds."""
    return f"{round(seconds)} s" if seconds < MINUTE - 0.5 else duration(seconds)


def brief(seconds: float) -> str:
    """Return a duration for lists, where the unit of the rest is clear: ``1 h 12``."""
    text = duration(seconds)
    return text.removesuffix(" min") if " h " in text else text


def size(count: int) -> str:
    """Return a number of bytes as ``512 B``, ``3.4 KiB`` or ``61.2 GiB``."""
    units = iter(("B", "KiB", "MiB", "GiB", "TiB"))
    value, unit = float(count), next(units)
    while value >= 1023.95 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def clock(at: str) -> str:
    """Return ``02:14:33`` of a moment as the journal writes it; empty for none."""
    return _moment(at).strftime("%H:%M:%S") if at else ""


def day_and_time(at: str) -> str:
    """Return ``2026-11-20 02:14``; empty for none."""
    return _moment(at).strftime("%Y-%m-%d %H:%M") if at else ""


def when(at: str, now: str) -> str:
    """Return the time of day, or date and time if the day is not that of ``now``."""
    same = bool(at and now) and _moment(at).date() == _moment(now).date()
    return clock(at) if same else day_and_time(at)


def between(begin: str, end: str) -> float:
    """Return the seconds between two moments; 0 if either is unknown, or if clocks disagree about their order."""
    return max(0.0, (_moment(end) - _moment(begin)).total_seconds()) if begin and end else 0.0


def _moment(at: str) -> datetime:
    return datetime.fromisoformat(at).astimezone(UTC)


def value_text(value: Any) -> str:
    """Return a small value as JSON, in one line; the beginning of a long one."""
    text = printable(json.dumps(value, ensure_ascii=False))
    return (
        text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}… ({len(text)} characters; -o json prints all)"
    )


def plural(count: int, thing: str) -> str:
    several = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{count} {thing if count == 1 else several}"


def fitting(count: int, several: str) -> str:
    """Return the form of a word that fits so many things: ``is`` instead of ``are`` for one."""
    return _FOR_ONE[several] if count == 1 else several


def some(names: Sequence[str], at_most: int = 10) -> str:
    """Return ``a, b, c and 4 more``."""
    shown = ", ".join(names[:at_most])
    return f"{shown} and {len(names) - at_most} more" if len(names) > at_most else shown


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return lines with columns as wide as needed, two blanks apart; none without rows."""
    lines = [[printable(cell) for cell in cells] for cells in (header, *rows)]
    if len(lines) == 1:
        return []
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


# -- lines -------------------------------------------------------------------------------------------------------------


def coded(text: str, code: str, column: int = 0) -> str:
    """Return the text and its code, which stands in ``column``, or two blanks after a longer text."""
    return f"{printable(text):<{max(0, column - 2)}}  [{code}]"


def headline(text: str, code: str) -> str:
    return coded(text, code, CODE_COLUMN)


def labelled(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{printable(text)}"


# -- words -------------------------------------------------------------------------------------------------------------


def at_barrier(barrier: str) -> str:
    """Return a barrier as people call it, e.g. ``stage 'clean'``."""
    return {"": "a barrier", "end": "the end of the script", "checkpoint()": "job.checkpoint()"}.get(barrier, barrier)


def batch(number: int | None) -> str:
    """Return the newest batch of a query, -1 for none."""
    return "before batch 0" if number == -1 else f"batch {number}"


def sealed(at: str) -> str:
    """Return when a checkpoint was sealed; ``at`` is empty for a savepoint that is known by its directory only."""
    return f"sealed {at}" if at else "a savepoint"


def exit_code(code: int | None) -> str:
    """Return an exit code as all texts show it, with the signal that it stands for: ``exit code 137: SIGKILL``."""
    if code is None:
        return "exit code unknown"
    try:
        return f"exit code {code}: {signal.Signals(code - 128).name}"
    except ValueError:
        return f"exit code {code}"


def how_it_ended(outcome: str, code: int | None, at: str = "") -> str:
    """Return how an attempt or a driver ended, and ``at`` what time: ``failed 02:51:07 (exit code 1)``."""
    shown = "" if outcome == "finished" else f"({exit_code(code)})"
    return " ".join(filter(None, (ENDED.get(outcome, outcome), at, shown)))


def driver_ended(attempt: AttemptRecord | None, outcome: str = "", code: int | None = None) -> str:
    """Return how a driver ended: as the journal has it, or else with ``outcome`` and exit code."""
    if attempt is None:
        return f"the driver {how_it_ended(outcome, code)} before it attached"
    known = code if attempt.exit_code is None else attempt.exit_code
    return f"attempt {attempt.epoch} {how_it_ended(attempt.outcome or outcome, known)}"
