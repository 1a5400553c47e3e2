"""Golden files with texts that try to forge a line or to steer a terminal, and their places in a store. Runs anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.protocol.records import CHECKSUM, canonical
from tests.fuzz.mutations import GOLDEN
from tests.fuzz.readers import reader

JOB, RUN = "flights.delays", "scheduled__2026-11-20"
KEYS = Keys(History(JOB, RUN).prefix)
ROOT, TARGET = "memory://hostile", "memory://hostile-target"
SAVEPOINT = f"savepoint-{JOB}-1-00000010"
FORGED = "chk-9  savepoint  forged"
HOSTILE = f"\n{FORGED}\r\n{FORGED}\x1b[2J\x1b]0;title\x07\x9b1m\u202e\u2028{FORGED}\u2066\x7f\tend"

Place = tuple[str, ...]
"""The names that lead to a text in JSON, without the positions in lists. ``NAMES`` at the end: the names in an object."""
NAMES = "{}"
MAPPINGS = {"application_parts", "rename", "requests", "run_values", "states", "tokens", "values"}
"""Objects whose names are texts, and not the fields of a record."""


def places(data: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of each text."""
    if isinstance(data, str):
        yield place
    elif isinstance(data, list):
        for part in data:
            yield from places(part, place)
    elif isinstance(data, dict):
        for name, part in data.items():
            yield from places(part, (*place, name))
        if place and place[-1] in MAPPINGS and data:
            yield (*place, NAMES)


def planted(data: Any, place: Place) -> Any:
    """Return ``data`` with hostile text added to each text at ``place``."""
    if isinstance(data, list):
        return [planted(part, place) for part in data]
    if isinstance(data, dict) and place == (NAMES,):
        return {f"{name}{HOSTILE}": part for name, part in data.items()}
    if isinstance(data, dict) and place:
        return {name: planted(part, place[1:]) if name == place[0] else part for name, part in data.items()}
    return f"{data}{HOSTILE}" if isinstance(data, str) and not place else data


def stored(name: str) -> Any:
    """Return a golden file without its checksum, which would betray each change; its savepoints lie in a store of this test."""
    data = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8").replace("s3://lake/savepoints", TARGET))
    return {field: value for field, value in data.items() if field != CHECKSUM}


def first(entry: Any) -> Any:
    """Return an entry of a journal as its only one."""
    return {**entry, "n": 0} | ({"closed": {**entry["closed"], "n": 0}} if "closed" in entry else {})


OBJECTS: dict[str, tuple[str, Any]] = {
    **{name: (KEYS.entry(0), first(stored(name))) for name in (
        "entry-boundary", "entry-boundary-savepoints", "entry-boundary-application", "entry-closed-stub"
    )},
    "seal": (f"{SAVEPOINT}/_metadata", stored("seal")),
    "savepoint-stub": (f"{SAVEPOINT}/_metadata", stored("savepoint-stub")),
    "savepoint-claimed": (f"{SAVEPOINT}/_claimed", stored("savepoint-claimed")),
    "heartbeat": (KEYS.attempt_beat(3), stored("heartbeat")),
}  # fmt: skip


def is_read(name: str, place: Place) -> bool:
    """Return whether hostile text at this place of an object is read, and not refused."""
    try:
        reader(name)(canonical(planted(OBJECTS[name][1], place)))
    except CheckpointError:
        return False
    return True


def planted_everywhere(name: str) -> Any:
    """Return a golden file with hostile text in each field that may hold it."""
    data = OBJECTS[name][1]
    for place in sorted(set(places(data)), key=lambda place: (NAMES in place, place)):
        data = planted(data, place) if is_read(name, place) else data
    return data
