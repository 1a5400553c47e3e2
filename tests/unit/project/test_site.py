"""The site that is made of docs/: Sphinx finds no dead link, and each page has a way to it. Runs anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_site_is_made_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        tmp_path / "trees",
        DOCS,
        site,
    ]
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow")}
    made = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=env)
    assert made.returncode == 0, made.stderr
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert {page.relative_to(site) for page in site.rglob("*.html")} >= pages
    reference = (site / "reference" / "operators.html").read_text(encoding="utf-8")
    assert "CheckpointedSparkSubmitOperator" in reference
    assert "allow_non_restored_state" in reference, "the docstring's parameters are shown"
