"""The checksums of a Parquet file: of its footer, and of each of its pages. Runs anywhere.

The file is read as bytes, without a library: a flipped bit in a footer can end the process in which Arrow reads the file, and Spark's
session may be gone when a driver reads a file. Every length and offset is checked before it is used.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol.file_records import Footer

Read = Callable[[int, int], bytes]
"""Returns the bytes of one file from a start, as many as a length says."""

Fields = dict[int, Any]
"""A struct of Thrift: the values by the numbers of the fields."""

PLAIN_FOOTER, ENCRYPTED_FOOTER = b"PAR1", b"PARE"
TRAILER = 8  # bytes after the footer: its length, and the letters above
GUESS = 64 * 1024  # bytes that hold most footers, and every header of a page
PIECE = 8 * 1024 * 1024  # bytes of a column that are read at once
LONGEST_FOOTER = 64 * 1024 * 1024  # bytes
MOST_VALUES = 10_000_000  # of a footer: a column of one row group has some 25

DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
HEADER_OF = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}  # type of a page -> its field in the header
INTEGERS, PAGE_INTEGERS = (4, 5, 6), (5,)  # types of Thrift: 16, 32 and 64 bits
WIDTHS = {1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # type of a column -> bytes of each value, if all have as many
KEYS = 8  # the field of an encrypted column
LEVEL_ENCODINGS = {3, 4}  # RLE; BIT_PACKED in columns without levels


# -- footers -------------------------------------------------------------------------------------------------------------


def footer_of(read: Read, size: int) -> tuple[Footer, int | None]:
    """Return length and checksum of the bytes after the pages: indexes, which decide which pages are read, and the footer. Return also the
    number of rows in the footer; None if it is encrypted. Cost: one read, or up to three if these bytes are more than 64 KiB. Raises
    ``Damaged``.
    """
    tail, footer = _footer(read, size)
    with _readable():
        about = Thrift(footer).struct() if footer[-4:] == PLAIN_FOOTER else None
        length = size - _end_of_pages(about, size - len(footer))
        rows = None if about is None else _rows(about)
    checksum = zlib.crc32(tail[-length:]) if length <= len(tail) else crc_at(read, size - length, length)
    return Footer(bytes=length, checksum=f"{checksum:08x}"), rows


def _footer(read: Read, size: int) -> tuple[bytes, bytes]:
    """Return the last bytes of the file, and of them the footer."""
    guess = min(size, GUESS)
    tail = read(size - guess, guess)
    if len(tail) != guess or tail[-4:] not in (PLAIN_FOOTER, ENCRYPTED_FOOTER):
        raise Damaged("does not end as a Parquet file")
    length = int.from_bytes(tail[-TRAILER:-4], "little") + TRAILER
    if length > size:
        raise Damaged(f"has a footer of {length} bytes, more than the file has")
    if length > LONGEST_FOOTER:
        raise Damaged(f"has a footer of {length} bytes, more than {LONGEST_FOOTER}")
    return tail, _last(read, size, tail, length)


def _last(read: Read, size: int, tail: bytes, length: int) -> bytes:
    return tail[-length:] if length <= len(tail) else read(size - length, length)


def _rows(about: Fields) -> int:
    rows = about[3]
    if not isinstance(rows, int) or rows < 0:
        raise Damaged("has a footer that tells no number of rows")
    return rows


def _end_of_pages(about: Fields | None, begin: int) -> int:
    """Return where the pages end; of a file with an encrypted footer or column, where the footer begins."""
    columns = _columns(about or {})
    if about is None or any(KEYS in column for column in columns):
        return begin
    end = max((_start(column[3]) + column[3][7] for column in columns), default=begin)
    if not 4 <= end <= begin:
        raise Damaged(f"has pages up to byte {end}, outside of its data")
    return int(end)


def _columns(footer: Fields) -> list[Fields]:
    return [column for group in footer.get(4, ()) for column in group[1]]


def _start(column: Fields) -> int:
    """Return the first byte of a column: that of its dictionary, if it has one."""
    return min(int(start) for start in (column.get(11), column[9]) if start)


@contextmanager
def _readable() -> Iterator[None]:
    """Raise ``Damaged`` for the errors that bytes of no Parquet file can cause here."""
    try:
        yield
    except Damaged:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"has a footer or a page header that cannot be read ({error!r})") from None


# -- pages ---------------------------------------------------------------------------------------------------------------


def check_pages(read: Read, size: int, rows: int) -> None:
    """Read all pages, and compare them with their checksums and with the footer. Raises ``Damaged``, which names the difference.

    Encrypted columns are passed over: their pages carry authentication codes that only the holder of the keys can check.
    """
    _, footer = _footer(read, size)
    if footer[-4:] == ENCRYPTED_FOOTER:
        return
    with _readable():
        about = Thrift(footer).struct()
        if (told := _rows(about)) != rows:
            raise Damaged(f"holds {told} rows, but {rows} were written")
        columns = [column[3] for column in _columns(about) if KEYS not in column]
        if sum(max(column[7], 0) for column in columns) > size:  # else a small file could be read for ever
            raise Damaged("has columns that are longer than the file")
        for column in columns:
            _check_column(read, size - len(footer), column)


@dataclass
class _Totals:
    """The sums over the pages of one column."""

    values: int = 0
    bytes: int = 0
    encodings: Counter[tuple[bool, int]] = field(default_factory=Counter)  # whether a dictionary, encoding -> pages


def _check_column(read: Read, end_of_pages: int, column: Fields) -> None:
    at, end = _start(column), _start(column) + column[7]
    if not 4 <= at <= end <= end_of_pages:
        raise Damaged(f"has a column from byte {at} to {end}, outside of its data")
    window, totals = _Window(read, end), _Totals()
    while at < end:
        at = _check_page(window, at, end, totals, WIDTHS.get(column[1]))
    promised: Counter[tuple[bool, int]] = Counter()
    for about in column.get(13, ()):
        promised[about[1] == DICTIONARY_PAGE, about[2]] += about[3]
    if (totals.values, totals.bytes) != (column[5], column[6]) or (promised and promised != totals.encodings):
        raise Damaged(f"has pages before byte {end} that do not add up to what the footer says")


def _check_page(window: _Window, at: int, end: int, totals: _Totals, width: int | None) -> int:
    """Compare one page with its checksum, and return where the next page begins. A value has ``width`` bytes, if all have as many."""
    thrift = Thrift(window.bytes(at, min(GUESS, end - at)), integers=PAGE_INTEGERS)
    header = thrift.struct()
    kind, length = header[1], int(header[3])
    after = at + thrift.at + length
    if length < 0 or after > end:
        raise Damaged(f"has a page at byte {at} that is longer than its column")
    if crc_at(window.bytes, at + thrift.at, length) != header[4] + (1 << 32 if header[4] < 0 else 0):  # it is signed
        raise Damaged(f"has a page at byte {at} that does not match its checksum")
    about = header[HEADER_OF[kind]]
    if kind == DATA_PAGE and not {about[3], about[4]} <= LEVEL_ENCODINGS:
        raise Damaged(f"has a page at byte {at} with unknown levels")
    if kind == DICTIONARY_PAGE and width and about[1] * width != header[2]:
        raise Damaged(f"has a dictionary at byte {at} with another number of values")
    totals.bytes += thrift.at + header[2]
    totals.values += about[1] if kind != DICTIONARY_PAGE else 0
    totals.encodings[kind == DICTIONARY_PAGE, about[4 if kind == DATA_PAGE_V2 else 2]] += 1
    return after


class _Window:
    """The bytes of a column, read in pieces; no more than a piece at once."""

    def __init__(self, read: Read, end: int) -> None:
        self._read, self._end = read, end
        self._at, self._body = 0, b""

    def bytes(self, at: int, length: int) -> bytes:
        if not self._at <= at <= at + length <= self._at + len(self._body):
            self._at, self._body = at, self._read(at, min(PIECE, self._end - at))
            if len(self._body) < length:
                raise Damaged(f"ends before byte {at + length}")
        return self._body[at - self._at : at - self._at + length]


def crc_at(read: Read, start: int, length: int) -> int:
    """Return the CRC-32 of so many bytes, of which few are in memory at a time."""
    checksum = 0
    for at in range(start, start + length, PIECE):
        checksum = zlib.crc32(read(at, min(PIECE, start + length - at)), checksum)
    return checksum


# -- Thrift --------------------------------------------------------------------------------------------------------------


class Thrift:
    """Reads the compact encoding of Thrift, in which Parquet writes footers and headers. ``at`` is the next byte.

    ``integers`` are the types of integers that may occur. A struct becomes a dict by the number of the field. Raises ``LookupError`` or
    ``ValueError`` for bytes that cannot be read, and for more than ``MOST_VALUES`` values.
    """

    def __init__(self, body: bytes, integers: tuple[int, ...] = INTEGERS) -> None:
        self._body, self._integers, self.at = body, integers, 0
        self._left = MOST_VALUES

    def struct(self) -> Fields:
        fields: Fields = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = head & 15 == 1 if head & 15 in (1, 2) else self._value(head & 15)
        return fields

    def _value(self, kind: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {MOST_VALUES} values")
        if kind in (1, 2, 3):  # in a list, a bool is a byte
            return self._byte()
        if kind in self._integers:
            return self._integer()
        if kind in (7, 8):
            return self._bytes(8 if kind == 7 else self._unsigned())
        if kind in (9, 10):
            return self._list()
        if kind == 11:
            return self._map()
        if kind == 12:
            return self.struct()
        raise ValueError(f"no type {kind}")

    def _list(self) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 != 15 else self._unsigned()
        return [self._value(head & 15) for _ in range(count)]

    def _map(self) -> list[tuple[Any, Any]]:
        count = self._unsigned()
        kinds = self._byte() if count else 0
        return [(self._value(kinds >> 4), self._value(kinds & 15)) for _ in range(count)]

    def _byte(self) -> int:
        self.at += 1
        return self._body[self.at - 1]

    def _bytes(self, length: int) -> bytes:
        self.at += length
        if self.at > len(self._body):
            raise ValueError("it ends too early")
        return self._body[self.at - length : self.at]

    def _integer(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _unsigned(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("a number has no end")
