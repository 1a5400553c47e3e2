"""The parts of a page that a program writes: they lie between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``. Runs anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable

BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->\n)", re.DOTALL)


def names(page: str) -> list[str]:
    """Return the names of the page's blocks, in their order."""
    return [name for _, name, _ in BLOCK.findall(page)]


def filled(page: str, made: Callable[[str], str]) -> str:
    """Return the page with ``made(name)`` in the block of that name."""
    return BLOCK.sub(lambda found: f"{found[1]}{made(found[2])}{found[3]}", page)
