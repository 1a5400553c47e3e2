"""The screenshots of the documentation, and of what each was taken. Runs anywhere."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from pathlib import Path

import airflow_checkpoint_provider.ui

UI = Path(airflow_checkpoint_provider.ui.__file__).parent
FOLDER = UI.parents[1] / "docs" / "pages"
TAKEN = FOLDER / "taken.json"  # screenshot -> digest of the files of its page
TEMPLATES = {
    "jobs-light": "jobs", "jobs-dark": "jobs", "job-light": "job", "job-dark": "job", "job-whole": "job", "tab": "job",
}  # fmt: skip
COMMAND = "WRITE_SCREENSHOTS=1 .venv/bin/pytest tests/e2e/test_pages.py tests/e2e/test_pages_live.py -k 'screenshots or retry'"


def folder(scratch: Path) -> Path:
    """Return the folder for screenshots: that of the documentation if the environment says so, else ``scratch``."""
    chosen = FOLDER if os.environ.get("WRITE_SCREENSHOTS") else scratch
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


def note(screenshot: Path) -> None:
    """Note of which templates and styles a screenshot of the documentation was taken."""
    if screenshot.parent == FOLDER:
        TAKEN.write_text(
            json.dumps(noted() | {screenshot.stem: made_of(screenshot.stem)}, indent=2, sort_keys=True) + "\n"
        )


def noted() -> dict[str, str]:
    """Return the digest of each screenshot's page when it was taken."""
    found: dict[str, str] = json.loads(TAKEN.read_text()) if TAKEN.exists() else {}
    return found


def made_of(name: str) -> str:
    """Return the digest of the templates, styles and charts of the page that a screenshot shows."""
    templates = (UI / "templates" / f"{part}.html" for part in ("base", "parts", TEMPLATES[name]))
    digest = hashlib.sha256()
    for file in (*templates, UI / "static" / "page.css", UI / "static" / "page.js"):
        digest.update(file.read_bytes())
    digest.update(_drawing(UI / "charts.py").encode())
    return digest.hexdigest()[:16]


def _drawing(module: Path) -> str:
    """Return the code of a module without its imports and comments: they change no picture."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return ast.unparse(tree)
