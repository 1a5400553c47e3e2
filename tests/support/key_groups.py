"""Which file of a table by key holds which key groups, by plain arithmetic. Runs anywhere."""

from __future__ import annotations


def file_of(group: int, files: int, max_parallelism: int) -> int:
    """Return the number of the file that holds a key group, of ``files`` files."""
    return group * files // max_parallelism


def groups_of(file: int, files: int, max_parallelism: int) -> range:
    """Return the key groups that a file holds."""
    return range(-(-file * max_parallelism // files), -(-(file + 1) * max_parallelism // files))
