"""The report of a verb, and how it is printed. Runs anywhere; on a terminal ``rich`` is used, if it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from airflow_checkpoint_provider.errors import CheckpointError, printable
from airflow_checkpoint_provider.text.units import NO_HEARTBEAT, NONE, TONES, table

NAMES = ("JOB", "RUN", "ITEM", "ID", "FOLDER")
"""Columns whose cells people type again."""
FOLDED = 10  # letters: a longer word may be folded
GAP = 2  # that rich counts for each column
_COLOURS = {"good": "green", "busy": "yellow", "bad": "red"}


@dataclass(frozen=True)
class Report:
    """A table. ``lines`` replace it for people, ``plain`` for scripts; ``notes`` and ``errors`` go to stderr, and an error changes the
    exit code.
    """

    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    data: Any  # the same as JSON, in seconds and bytes
    lines: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    errors: tuple[CheckpointError, ...] = ()
    plain: Sequence[Sequence[str]] | None = None


def with_items(
    header: tuple[str, ...], rows: Sequence[Sequence[str]], items: Sequence[str | None]
) -> tuple[tuple[str, ...], Sequence[Sequence[str]]]:
    """Return the table with a column ITEM after RUN, if one of the rows has an item."""
    if not any(items):
        return header, rows
    after = header.index("RUN") + 1
    cells = [(*row[:after], item or NONE, *row[after:]) for row, item in zip(rows, items, strict=True)]
    return (*header[:after], "ITEM", *header[after:]), cells


def write(report: Report, output: str, out: TextIO) -> None:
    """Print a report. ``output`` is table, json or plain."""
    if output == "json":
        print(json.dumps(report.data, indent=2), file=out)
    elif output == "plain":
        for cells in report.rows if report.plain is None else report.plain:
            print("\t".join(map(printable, cells)), file=out)
    elif report.lines is not None:
        write_lines(report.lines, out)
    elif report.rows and not (out.isatty() and _written_by_rich(report.header, report.rows, out)):
        write_lines(table(report.header, report.rows), out)


def write_lines(lines: Iterable[str], out: TextIO) -> None:
    """Print each line as one line, whatever stored text is in it."""
    print(*map(printable, lines), sep="\n", file=out, flush=True)


def _colour(cell: str) -> str:
    """Return the colour of a cell that begins with a state."""
    tone = "bad" if cell.endswith(NO_HEARTBEAT) else TONES.get(cell.partition(",")[0], "")
    return _COLOURS.get(tone, "")


def _written_by_rich(header: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> bool:
    """Print a table in colours, with columns folded to the terminal's width. Return False if ``rich`` is not installed.

    Names stay in one line, because people copy them. If even the other columns cannot be folded so far, the terminal breaks the lines.
    """
    try:
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    console = Console(file=out)
    widths, console.width = _widths(header, rows, console.width, cell_len)
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(header, widths, strict=True):
        drawn.add_column(name, overflow="fold", width=width)
    for cells in rows:
        drawn.add_row(*(Text(printable(cell), _colour(cell)) for cell in cells))
    console.print(drawn)
    return True


def _widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int, length: Callable[[str], int]
) -> tuple[list[int], int]:
    """Return the widths of the columns of a table, and the width of all: ``width``, if no name and no short word must be broken for it."""
    columns = list(zip(header, *(map(printable, cells) for cells in rows), strict=True))
    widths = [max(map(length, column)) for column in columns]
    words = [max(length(word) for cell in column for word in cell.split()) for column in columns]
    least = [
        whole if column[0] in NAMES else min(FOLDED, word)
        for column, whole, word in zip(columns, widths, words, strict=True)
    ]
    width = max(width, sum(least) + GAP * len(least))
    while sum(widths) + GAP * len(widths) > width:
        widest = max(range(len(widths)), key=lambda n: widths[n] - least[n])
        widths[widest] -= 1
    return widths, width
