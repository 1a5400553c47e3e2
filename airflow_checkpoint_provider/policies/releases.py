"""Releases of Airflow and Spark by their major and minor version. Runs anywhere."""

from __future__ import annotations

import re


def minor(version: str) -> tuple[int, ...]:
    """Return major and minor version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def text(release: tuple[int, ...]) -> str:
    """Return a release as people write it, such as 4.2."""
    return ".".join(map(str, release))
