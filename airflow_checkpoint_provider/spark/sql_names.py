"""Names as Spark's SQL reads them. Runs in the Spark driver."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return the name of a column, a table or a folder as SQL and ``col`` read it."""
    return f"`{name.replace('`', '``')}`"
