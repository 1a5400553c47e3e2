"""The statistics of a history as a person reads them. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_checkpoint_provider.protocol.state import ABORTED, State
from airflow_checkpoint_provider.protocol.wording import labelled, title
from airflow_checkpoint_provider.text.units import day_and_time, duration, plural, size, some, table

SPREAD = ("completed", "min", "avg", "p50", "p90", "p95", "p99", "p99.9", "max")
_MEASURED: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("duration", "end_to_end_duration", lambda ms: duration(ms / 1000)),
    ("new bytes", "checkpointed_size", lambda count: size(round(count))),
    ("size", "state_size", lambda count: size(round(count))),
)


def statistics(state: State, answer: Mapping[str, Any]) -> list[str]:
    """``answer`` is what ``checkpoint.statistics`` says of ``state``."""
    latest = answer["latest"]
    taken = table(SPREAD, spreads(answer)) if latest["completed"] or latest["savepoint"] else []
    return [
        f"STATISTICS {title(state, state.scope)}",
        labelled("counts", _counts(answer["counts"])),
        *(labelled(name, text) for name, text in _latest(latest)),
        *_causes(state),
        *(f"  {line}" for line in taken),
    ]


def spreads(answer: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What completed checkpoints took and hold: one line per measure, under ``SPREAD``."""
    names = ("min", "avg", "p50", "p90", "p95", "p99", "p999", "max")
    return [(label, *(text(answer["summary"][field][one]) for one in names)) for label, field, text in _MEASURED]


def _counts(counts: Mapping[str, int]) -> str:
    parts = [f"{counts[name]} {name.replace('_', ' ')}" for name in ("completed", "failed", "in_progress")]
    return f"{plural(counts['total'], 'checkpoint')}: {', '.join(parts)}; {plural(counts['restored'], 'attempt')} began from one"


def _latest(latest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    says = {"completed": _taken, "savepoint": _taken, "failed": _failed, "restored": _restored}
    for name, text in says.items():
        yield name, text(latest[name]) if latest[name] else "none"


def _taken(one: Mapping[str, Any]) -> str:
    held = f"{size(one['state_size'])}, {size(one['checkpointed_size'])} of it new"
    where = "deleted" if one["discarded"] else one["external_path"]
    return f"chk-{one['id']} {_at(one['latest_ack_timestamp'])}, {duration(one['end_to_end_duration'] / 1000)}, {held}; {where}"


def _failed(one: Mapping[str, Any]) -> str:
    return f"chk-{one['id']} {_at(one['failure_timestamp'])}: {one['failure_message']}"


def _restored(one: Mapping[str, Any]) -> str:
    """The id of a savepoint from elsewhere is unknown: -1."""
    where, at = one["external_path"], _at(one["restore_timestamp"])
    return f"{where} {at}" if one["id"] < 0 else f"chk-{one['id']} {at}; {where}"


def _causes(state: State) -> list[str]:
    """Of the failures that are listed, the most frequent first."""
    causes = Counter(one.reason for one in state.checkpoints if one.status == ABORTED).most_common()
    return [labelled("causes", some([f"{reason} ({count})" for reason, count in causes]))] if causes else []


def _at(milliseconds: int) -> str:
    return day_and_time(datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat())
