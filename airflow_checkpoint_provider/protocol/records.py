"""Canonical JSON and the records that are stored as it. Runs anywhere.

A ``Record`` is a frozen dataclass whose JSON is read by its type hints. Fields that a newer writer added are kept in ``extra``
and written back, so that folding and snapshotting by an older version loses nothing. A record encodes itself, so that the JSON
of a ``Shared`` one, which many objects hold, is made once.

Reading is strict: an object that this package never writes is damaged. So every object that was read can be written again.
"""

from __future__ import annotations

import functools
import json
import math
import re
import types
import typing
import zlib
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, fields, replace
from json.encoder import encode_basestring
from typing import Any, ClassVar, Self

from airflow_checkpoint_provider.errors import Damaged, FormatTooNew, shortened

VERSION = 1
CHECKSUM = "crc"
DEEPEST = 128  # lists and objects inside of each other: reading and writing them is recursive
LONGEST_ERROR = 500  # characters of an error about stored data, which may quote all of it


_json = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_SCALARS: dict[type, Callable[[Any], str]] = {  # nearly all: a checkpoint of 1,000 states has 20,000
    str: encode_basestring,
    int: repr,
    bool: lambda flag: "true" if flag else "false",
    types.NoneType: lambda _: "null",
}


def canonical(data: Any) -> bytes:
    """Return the canonical JSON of ``data``: sorted keys, UTF-8, no blanks, no NaN. The same data give the same bytes."""
    return _text(data).encode()


def _text(data: Any) -> str:
    """Return the canonical JSON of plain JSON, of a record, or of a tuple or an object of such."""
    if scalar := _SCALARS.get(type(data)):
        return scalar(data)
    if isinstance(data, Record):
        return data.encoded
    if isinstance(data, tuple):
        items = [record.encoded for record in data] if _are_shared(data) else [_text(item) for item in data]
        return f"[{','.join(items)}]"
    if isinstance(data, Mapping) and any(isinstance(value, Record) for value in data.values()):
        return _joined(_members(data))
    return _json(data)


def checked(data: Record | Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of an object together with its checksum, by which ``parse`` notices a change."""
    members = data.members() if isinstance(data, Record) else _members(data)
    members[CHECKSUM] = f'"{CHECKSUM}":"{crc_of(_joined(members).encode())}"'
    return _joined(members).encode()


def _members(data: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{encode_basestring(name)}:{_text(value)}" for name, value in data.items()}


def _joined(members: Mapping[str, str]) -> str:
    return f"{{{','.join([members[name] for name in sorted(members)])}}}"


def crc_of(body: bytes) -> str:
    """Return the CRC-32 of ``body`` in hex."""
    return f"{zlib.crc32(body):08x}"


def parse(body: bytes, what: str, deepest: int = DEEPEST) -> dict[str, Any]:
    """Return the object in ``body``, without its checksum. ``what`` names it in errors.

    Raises ``Damaged`` if it is not an object with a version, or does not match its checksum; ``FormatTooNew`` if its version is
    newer than this package. An object without a checksum is taken as it is.
    """
    try:
        data = _loaded(body)
        checksum = data.pop(CHECKSUM, None) if isinstance(data, dict) else None
        matches = checksum is None or checksum == crc_of(canonical(data))
        if _SURROGATE.search(body):
            canonical(data)
        refuse_deep(data, deepest)
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{what} is not JSON ({cut(str(error))}); somebody or something changed it after it was written"
        ) from None
    if not isinstance(data, dict) or type(data.get("v")) is not int or data["v"] < 1:
        raise Damaged(f"{what} is not an object with a version; it was not written by this package")
    if not matches:
        raise Damaged(
            f"{what} does not match its checksum; somebody or something changed it after it was written. Bring it back from a backup"
        )
    if data["v"] > VERSION:
        raise FormatTooNew(
            f"{what} has format {data['v']}, this version reads up to {VERSION}: upgrade airflow-checkpoint-provider here"
        )
    return data


def _loaded(body: bytes) -> Any:
    return json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite)


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
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large")
    return number


@dataclass(frozen=True)
class Check:
    """A condition that a stored value must meet besides its type: ``Annotated[int, Check(...)]``.

    ``meaning`` completes the sentence "… is not a valid …".
    """

    holds: Callable[[Any], bool]
    meaning: str


def added(default: Any = None, *, factory: Callable[[], Any] | None = None) -> Any:
    """Declare a field that is written only if it differs from its default.

    Each field that comes to a format after its first golden file must be one, so that older records keep their bytes.
    """
    make = factory or (lambda: default)
    return field(default_factory=make, metadata={"added": make})


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of everything that is stored. ``extra`` holds the fields that this version does not know.

    Lists and objects lie inside of each other at most ``deepest`` times.
    """

    deepest: ClassVar[int] = DEEPEST
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def encoded(self) -> str:
        """Return the canonical JSON of the record."""
        return _joined(self.members())

    def members(self) -> dict[str, str]:
        """Return the members of the record's canonical JSON, by name."""
        members = _members(self.extra)
        for name, label, default in _written(type(self)):  # type: ignore[arg-type]  # a class is hashable, mypy doubts it
            value = getattr(self, name)
            if default is None or value != default():
                members[name] = label + _text(value)
        return members

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON, in which nothing is shared with it."""
        data: dict[str, Any] = json.loads(self.encoded)
        return data

    def unproved(self) -> Self:
        """Prove the ``Shared`` records that lie in tuples of this one. Return the record without them."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        shared = {name: value for name, value in values.items() if isinstance(value, tuple) and _are_shared(value)}
        for records in shared.values():
            for record in records:
                record.prove()
        return replace(self, **dict.fromkeys(shared, ()))  # type: ignore[arg-type]  # only tuples are replaced

    def check(self) -> None:
        """Raise ``ValueError`` if fields that were read do not fit together. A class with such fields overrides it."""

    @classmethod
    def from_bytes(cls, body: bytes, key: str = "a stored record") -> Self:
        """Return the record that is stored at ``key``. Raises ``Damaged`` and ``FormatTooNew``, which name the key."""
        data = parse(body, key, cls.deepest)
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
            text = error.message if isinstance(error, Damaged) else str(error)  # its code follows once, at the end
            raise Damaged(f"a stored {cls.__name__} cannot be read: {cut(text)}") from error


class Shared(Record):
    """A record that many stored objects hold, as checkpoints hold the states that are handed on, and snapshots of the journal
    hold the retained checkpoints. It is encoded once, and proved to be readable once.
    """

    deepest: ClassVar[int] = DEEPEST - 8  # it lies in a checkpoint, which lies in the snapshot of an entry

    @functools.cached_property
    def encoded(self) -> str:
        return _joined(self.members())

    def prove(self) -> None:
        """Raise ``Damaged`` if nobody could read this record again."""
        return self._proof

    @functools.cached_property
    def _proof(self) -> None:
        try:
            data = _loaded(self.encoded.encode())
            refuse_deep(data, self.deepest)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"a {type(self).__name__} is not JSON ({cut(str(error))})") from None
        self.from_json(data)


def _are_shared(records: tuple[Any, ...]) -> bool:
    return bool(records) and isinstance(records[0], Shared)


@functools.cache
def _written(cls: type[Record]) -> tuple[tuple[str, str, Callable[[], Any] | None], ...]:
    """Return names and JSON labels of the fields; with each that was added later, a function that makes its default."""
    return tuple((f.name, f'"{f.name}":', f.metadata.get("added")) for f in fields(cls) if f.name != "extra")


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
        raise ValueError(f"{value!r} is not a valid {check.meaning}")
    return value


def _scalar(hint: type, value: Any) -> Any:
    """Return ``value`` if it has exactly this type: in Python, but not in JSON, ``True`` is a number."""
    if type(value) is not hint:
        raise TypeError(f"{value!r} is not of type {hint.__name__}")
    return value


def of_newer_kind(what: str, kind: str) -> FormatTooNew:
    """Return the error for something stored whose ``kind`` a later version added. ``what`` names it."""
    return FormatTooNew(
        f"{what} is of kind {cut(kind)!r}, which this version does not know: upgrade airflow-checkpoint-provider here"
    )


def known_kind(what: str, kinds: Container[str]) -> Callable[[str], bool]:
    """Return the condition of a kind. It raises the error of ``of_newer_kind`` for one that is not of ``kinds``."""

    def is_known(kind: str) -> bool:
        if kind not in kinds:
            raise of_newer_kind(what, kind)
        return True

    return is_known


def cut(text: str) -> str:
    """Return ``text``, cut to the length that an error may have."""
    return shortened(text, LONGEST_ERROR)
