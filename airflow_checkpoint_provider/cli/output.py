"""The report of a verb, and how it is printed. Runs anywhere; on a terminal ``rich`` is used, if it is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from airflow_checkpoint_provider.errors import CheckpointError, printable
from airflow_checkpoint_provider.text.units import NONE, TONES, table

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
    return _COLOURS.get(TONES.get(cell.partition(",")[0], ""), "")


def _written_by_rich(header: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> bool:
    """Print a table in colours, with columns folded to the terminal's width. Return False if ``rich`` is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    drawn = Table(*header, box=None, pad_edge=False, header_style="bold")
    for cells in rows:
        drawn.add_row(*(Text(printable(cell), _colour(cell)) for cell in cells))
    Console(file=out).print(drawn)
    return True
