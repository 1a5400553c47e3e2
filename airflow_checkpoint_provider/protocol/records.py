"""Canonical JSON and the records that are stored as it. Runs anywhere.

A ``Record`` is a frozen dataclass whose JSON is read by its type hints. Fields that a newer writer added are kept in ``extra``
and written back, so that folding and snapshotting by an older version loses nothing.

Reading is strict: what this package never writes is damaged. So whatever was read can be written again.
"""

from __future__ import annotations

import functools
import json
import math
import re
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from airflow_checkpoint_provider.errors import Damaged, FormatTooNew

VERSION = 1
CHECKSUM = "crc"
DEEPEST = 128  # lists and objects inside of each other: reading and writing them is recursive
LONGEST_ERROR = 500  # characters of an error about stored data, which may quote all of it


def canonical(data: Any) -> bytes:
    """Return the canonical JSON of ``data``: sorted keys, UTF-8, no blanks, no NaN. The same data give the same bytes."""
    return _text(data).encode()


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def checked(data: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of an object together with its checksum, by which ``parse`` notices a change."""
    members = {name: f"{_text(name)}:{_text(value)}" for name, value in data.items()}  # each is encoded once
    members[CHECKSUM] = f'"{CHECKSUM}":"{crc_of(_joined(members))}"'
    return _joined(members)


def _joined(members: Mapping[str, str]) -> bytes:
    return f"{{{','.join(members[name] for name in sorted(members))}}}".encode()


def crc_of(body: bytes) -> str:
    """Return the CRC-32 of ``body`` in hex."""
    return f"{zlib.crc32(body):08x}"


def parse(body: bytes, what: str) -> dict[str, Any]:
    """Return the object in ``body``, without its checksum. ``what`` names it in errors.

    Raises ``Damaged`` if it is no object with a version, or does not match its checksum; ``FormatTooNew`` if its version is
    newer than this package. An object without a checksum is taken as it is.
    """
    try:
        data = json.loads(
            body.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite
        )
        checksum = data.pop(CHECKSUM, None) if isinstance(data, dict) else None
        matches = checksum is None or checksum == crc_of(canonical(data))
        if _SURROGATE.search(body):
            canonical(data)
        refuse_deep(data, DEEPEST)
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{what} is not JSON ({cut(str(error))}); somebody or something changed it after it was written"
        ) from None
    if not isinstance(data, dict) or type(data.get("v")) is not int or data["v"] < 1:
        raise Damaged(f"{what} is no object with a version; it was not written by this package")
    if not matches:
        raise Damaged(
            f"{what} does not match its checksum; somebody or something changed it after it was written. Bring it back from a backup"
        )
    if data["v"] > VERSION:
        raise FormatTooNew(
            f"{what} has format {data['v']}, this version reads up to {VERSION}: upgrade airflow-checkpoint-provider here"
        )
    return data


def refuse_deep(data: Any, deepest: int) -> None:
    """Raise ``ValueError`` if lists and objects lie inside of each other more than ``deepest`` times."""
    level = [data]
    for _ in range(deepest + 1):
        inside = (part.values() if type(part) is dict else part for part in level if type(part) in (dict, list))
        level = [inner for part in inside for inner in part if type(inner) is dict or type(inner) is list]
        if not level:
            return
    raise ValueError(f"lists or objects are nested more than {deepest} times")


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half a character, perhaps: it cannot be written as UTF-8


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("an object holds one name twice")
    return data


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large")
    return number


@dataclass(frozen=True)
class Check:
    """A condition that a stored value must meet besides its type: ``Annotated[int, Check(...)]``.

    ``meaning`` completes the sentence "… is no …".
    """

    holds: Callable[[Any], bool]
    meaning: str


def added(default: Any = None, *, factory: Callable[[], Any] | None = None) -> Any:
    """Declare a field that came to a format after its first golden file.

    It is written only if it differs from its default, so that older records keep their bytes.
    """
    make = factory or (lambda: default)
    return field(default_factory=make, metadata={"added": make})


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of everything that is stored. ``extra`` holds the fields that this version does not know."""

    extra: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        data = dict(self.extra)
        for name, default in _written(type(self)):  # type: ignore[arg-type]  # a class is hashable, mypy doubts it
            value = getattr(self, name)
            if default is None or value != default():
                data[name] = _plain(value)
        return data

    def check(self) -> None:
        """Raise ``ValueError`` if fields that were read do not fit together. A class with such fields overrides it."""

    @classmethod
    def from_bytes(cls, body: bytes, key: str = "a stored record") -> Self:
        """Return the record that is stored at ``key``. Raises ``Damaged`` and ``FormatTooNew``, which name the key."""
        data = parse(body, key)
        try:
            return cls.from_json(data)
        except Damaged as error:
            raise Damaged(f"{key}: {error.message}; somebody or something changed it") from None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known = _readers(cls)  # type: ignore[arg-type]  # a class is hashable, mypy doubts it of Self
        try:
            own = {name: read(data[name]) for name, read in known.items() if name in data}
            record = cls(**own, extra={name: value for name, value in data.items() if name not in known})
            record.check()
            return record
        except FormatTooNew:
            raise
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise Damaged(f"a stored {cls.__name__} cannot be read: {cut(str(error))}") from error


def _plain(value: Any) -> Any:
    if value is None or type(value) in (str, int, float, bool):  # nearly all: a checkpoint of 1,000 states has 20,000
        return value
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value


@functools.cache
def _written(cls: type[Record]) -> tuple[tuple[str, Callable[[], Any] | None], ...]:
    """Return the names of the fields; with each that was added later, a function that makes its default."""
    return tuple((f.name, f.metadata.get("added")) for f in fields(cls) if f.name != "extra")


@functools.cache
def _readers(cls: type[Record]) -> dict[str, typing.Callable[[Any], Any]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: _reader(hints[f.name]) for f in fields(cls) if f.name != "extra"}


def _reader(hint: Any) -> typing.Callable[[Any], Any]:
    """Return a function that turns the JSON of a field into the type that its hint names."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return functools.partial(_checked, _reader(arguments[0]), arguments[1])
    if origin in (typing.Union, types.UnionType):
        inner = _reader(next(argument for argument in arguments if argument is not types.NoneType))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        read_item = _reader(arguments[0])
        return lambda value: tuple(read_item(item) for item in _scalar(list, value))
    if origin in (dict, Mapping, typing.get_origin(Mapping[str, Any])):
        read_item = _reader(arguments[1])
        return lambda value: {name: read_item(item) for name, item in _scalar(dict, value).items()}
    if isinstance(hint, type) and issubclass(hint, Record):
        return lambda value: hint.from_json(_scalar(dict, value))
    if hint is float:
        return lambda value: value if type(value) is int else _scalar(float, value)
    return functools.partial(_scalar, hint) if hint in (str, int, bool) else lambda value: value


def _checked(read: Callable[[Any], Any], check: Check, value: Any) -> Any:
    value = read(value)
    if not check.holds(value):
        raise ValueError(f"{value!r} is no {check.meaning}")
    return value


def _scalar(hint: type, value: Any) -> Any:
    """Return ``value`` if it has exactly this type: in Python, but not in JSON, ``True`` is a number."""
    if type(value) is not hint:
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value


def cut(text: str) -> str:
    """Return ``text``, cut to the length that an error may have."""
    return text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR // 2]} … {text[-LONGEST_ERROR // 2 :]}"
