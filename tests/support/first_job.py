"""The page for new users, docs/first-job.md: its commands by section, and its files. Runs anywhere."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.drivers import ROOT

PAGE = (ROOT / "docs" / "first-job.md").read_text()


def blocks(section: int, language: str = "sh") -> list[str]:
    """Return the blocks of a section, in their order."""
    (text,) = re.findall(rf"^## {section}\. (.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def save_files(folder: Path) -> None:
    """Save the files that the page tells its reader to save."""
    found = re.findall(r"[Ss]ave (?:it|the \w+) as `([\w/.]+)`.*?```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for name, text in found:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
