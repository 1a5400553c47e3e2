"""What tests download once, below the checkout. Runs on Linux."""

from __future__ import annotations

from pathlib import Path


def put(made: Path, folder: Path) -> None:
    """Rename ``made`` to ``folder``. Where another process of the tests was faster, its folder stays."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
