"""Golden texts: lines of today are compared with a file beside the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
REWRITE = "WRITE_GOLDEN_TEXTS"  # in the environment: store the lines of today, then read the diff

Golden = Callable[[str, Iterable[str]], None]


@pytest.fixture
def golden() -> Golden:
    def compare(name: str, lines: Iterable[str]) -> None:
        written = list(lines)
        assert all("\n" not in line and line == line.rstrip() for line in written)
        file = FOLDER / f"{name}.txt"
        if os.environ.get(REWRITE):
            file.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
        assert written == file.read_text(encoding="utf-8").splitlines()

    return compare
