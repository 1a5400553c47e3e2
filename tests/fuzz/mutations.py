"""Mutations of stored bytes and of their JSON: what chance, a broken disk or an attacker makes of them. Runs anywhere."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.records import CHECKSUM, canonical, checked

GOLDEN = Path(__file__).parent.parent / "unit" / "protocol" / "golden" / "v1"
STORED = {file.stem: file.read_bytes() for file in sorted(GOLDEN.glob("*.json")) if not file.stem.startswith("events")}
"""The golden files: an object of each kind that is stored, in each of its shapes."""

CONTROL = "\x00\x07\t\n\r\x1b[2J\x1b]0;x\x07\x7f\x85\u202e\u2066\u200b\ufeff"
NESTED: Any = []
for _ in range(300):
    NESTED = [NESTED]
ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 7, 64, 2**31, 2**63, 10**30, 0.0, -0.5, 1.5, 1e300),
    *("", " ", "..", "../x", "/etc/passwd", "a/b", "a=b", CONTROL, "é" * 300, "9" * 30, "x" * 10_000, "NaN", "\ud800"),
    *("chk-1", "latest", "none", "job", "memory://x/savepoint-a-1-b", "file:///etc", "s3://b/k", "checkpoint", "savepoint"),
    *("2026-11-22T10:00:00.000Z", "2026-11-22T10:00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"),
    *("completed", "retained", "condemned", "aborted", "pending", "forgotten", "finished", "failed", "lost", "running"),
    *([], [[]], [None], {}, {"v": 1}, {"v": 9}, {"kind": "x"}, [{}], [1, 1], [0], ["", ""], NESTED),
]  # fmt: skip


class Fresh(int):
    """A number of inputs that are others in each run of the tests: they are made from ``FUZZ_SEED``."""


def short_and_long(short: int, long: int) -> pytest.MarkDecorator:
    """Run a test with the same ``short`` inputs each time, and in the slow suite with ``long`` fresh ones."""
    return pytest.mark.parametrize("inputs", [short, pytest.param(Fresh(long), marks=pytest.mark.slow, id="fresh")])


def attack(attack_one: Callable[[str], object], name: str, inputs: int) -> None:
    """Attack with so many inputs, each made from its seed, which a failure names."""
    of_run = f"{os.environ['FUZZ_SEED']} " if isinstance(inputs, Fresh) else ""
    for number in range(inputs):
        seed = f"{of_run}{name} {number}"
        try:
            attack_one(seed)
        except BaseException as error:
            error.add_note(f"input {seed!r}")
            raise


def hurt_bytes(body: bytes, chance: random.Random, others: Sequence[bytes] = (b"",)) -> bytes:
    """Return ``body`` with one change: a flipped bit, a piece that is lost, doubled, strange or of another object."""
    at, size = chance.randrange(len(body) + 1), chance.randrange(1, 20)
    other = chance.choice(others)
    return chance.choice(
        [
            body[:at] + bytes(byte ^ 1 << chance.randrange(8) for byte in body[at : at + 1]) + body[at + 1 :],
            body[:at],
            body[:at] + body[at + size :],
            body[: at + size] + body[at:],
            body[:at] + other[chance.randrange(len(other) + 1) :],
            body + other,
            body[:at] + chance.randbytes(size) + body[at:],
            body[:at] + CONTROL.encode() + body[at:],
            body[:at] + chance.choice([b"[", b'{"a":']) * chance.choice([10, 5000]) + body[at:],
            body[:at] + chance.choice([b"NaN", b"1e999", b"9" * 5000, b'"\\ud800"', b"-", b"\xff", b"{", b"}"]) + body[at:],
        ]
    )  # fmt: skip


def hurt_json(body: bytes, chance: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Return an object with a few values that are changed, gone, doubled, or of elsewhere; mostly with a right checksum."""
    data: Any = json.loads(body)
    donors = [json.loads(chance.choice(others)) if others and chance.random() < 0.5 else copy.deepcopy(data)]
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        _change(data, donors[0], chance)
    text = json.dumps(data)
    if data and chance.random() < 0.02:
        return text.replace("{", '{"v":1,', 1).encode()  # a name twice
    try:
        data.pop(CHECKSUM, None)
        return checked(data) if chance.random() < 0.9 else canonical(data)
    except (ValueError, RecursionError):
        return text.encode()


def hurt(body: bytes, chance: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Return ``body`` hurt as bytes or as JSON."""
    try:
        return (
            hurt_json(body, chance, others) if chance.random() < 0.75 else hurt_bytes(body, chance, others or (body,))
        )
    except (ValueError, RecursionError):  # it is no JSON, or not any more
        return hurt_bytes(body, chance, others or (body,))


def _change(data: Any, donor: Any, chance: random.Random) -> None:
    part, name = _place(data, chance)
    if part is None:
        return
    value = part[name]

    def odd() -> Any:
        return copy.deepcopy(chance.choice(ODD))  # a later change must not reach the next input, or make a circle

    changes: list[Callable[[], Any]] = [odd] * 2
    changes += [lambda: _elsewhere(donor, name, chance)] * 2
    changes += [type(value)] * 2  # nothing of the same type
    if isinstance(value, list):
        changes += [lambda: value * 2, lambda: value[::-1], lambda: value[1:], lambda: value[:1]]
    if isinstance(value, dict):
        changes += [lambda: value | {chance.choice(list(value) or ["x"]) + chance.choice(["", "x", CONTROL]): odd()}]
    if type(value) is int:
        changes += [lambda: value + chance.choice([-1, 1, 64, 10**6])] * 2
    if isinstance(value, str):
        changes += [lambda: value + chance.choice([CONTROL, "x", "/..", "\n"]), lambda: value[:-1]]
    if isinstance(part, dict) and chance.random() < 0.15:
        del part[name]
    else:
        part[name] = chance.choice(changes)()


def _place(data: Any, chance: random.Random) -> tuple[Any, Any]:
    """Return an object or a list in ``data``, and a name or a number in it; None twice if there is none."""
    places = _places(data)
    return chance.choice(places) if places else (None, None)


def _places(data: Any) -> list[tuple[Any, Any]]:
    places: list[tuple[Any, Any]] = []
    queue = [data]
    while queue:
        part = queue.pop()
        inside = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        places += [(part, name) for name in inside]
        queue += [part[name] for name in inside]
    return places


def _elsewhere(donor: Any, name: Any, chance: random.Random) -> Any:
    """Return a value of the same name in ``donor``, or any value of it."""
    places = _places(donor)
    same = [part[inner] for part, inner in places if inner == name]
    if same and chance.random() < 0.7:
        return copy.deepcopy(chance.choice(same))
    part, inner = chance.choice(places) if places else ({"": None}, "")
    return copy.deepcopy(part[inner])
