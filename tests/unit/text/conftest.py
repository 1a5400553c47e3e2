"""Golden texts: what is said now is compared, line by line, with what is stored beside the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
REWRITE = "WRITE_GOLDEN_TEXTS"  # in the environment: store what is said now, then read the diff

Golden = Callable[[str, Iterable[str]], None]


@pytest.fixture
def golden() -> Golden:
    def compare(name: str, lines: Iterable[str]) -> None:
        said = list(lines)
        assert all("\n" not in line and line == line.rstrip() for line in said)
        file = FOLDER / f"{name}.txt"
        if os.environ.get(REWRITE):
            file.write_text("".join(f"{line}\n" for line in said), encoding="utf-8")
        assert said == file.read_text(encoding="utf-8").splitlines()

    return compare
