"""Log lines of a driver about the sources of its queries. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.text.units import coded, fitting, plural, some

CODES = {  # code -> meaning of the line; docs/reference/codes.md shows it
    "CKP140": "A source does not have all rows that a query reads again, or has other ones. The query reads the rows that are there.",
    "CKP141": "A query reads rows again, and this package cannot ask its source whether it still has them.",
    "CKP149": "A source has another path than before, and reads all files there. If it has read some of them, rows come twice.",
}


def left_out(uid: str, what: str) -> str:
    """Say which rows a source lacks, and why the query starts nevertheless."""
    return coded(f"query '{uid}': {what}", "CKP140")


def replaced(uid: str, files: Sequence[str]) -> str:
    """Say which files have another content than they had when the query first read them."""
    what = f"{plural(len(files), 'file')} that it reads again changed since it found {fitting(len(files), 'them')}, and it reads the new content"
    return coded(f"query '{uid}': {what}: {some(files)}", "CKP140")


def not_asked(uid: str, what: Sequence[str]) -> str:
    """Say which sources could not be asked."""
    text = f"query '{uid}' reads rows again. Not checked: whether all of them are still there in {some(what)}. Rows that are gone will be missing"
    return coded(text, "CKP141")


def asking(uid: str, done: int, count: int) -> str:
    """Say how many files were looked for."""
    return printable(f"query '{uid}': looks for the files that it reads again: {done} of {count}")


def moved(uid: str, path: str, newest: str) -> str:
    """Say that a source reads another path than before."""
    text = (
        f"query '{uid}': its source {path} has read other paths before, such as {newest}. Now it reads all files of its path. If some are files"
        " that it has read before, their rows come twice"
    )
    return coded(text, "CKP149")
