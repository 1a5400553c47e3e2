"""What the demo prints and writes. Runs on Linux."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.support import demo

UNDISTURBED = "ce02d2a24b9d6e85924b1108133a0dadeb31f93f652410b324b1e60e12722535"
"""The digest of the report of a run that nobody disturbs. test_demo.py makes such a run."""


def digest(report: Path) -> str:
    """Return the SHA-256 of the rows of a report, in hex."""
    return hashlib.sha256(json.dumps(demo.rows(report), sort_keys=True).encode()).hexdigest()


def is_shown(told: str) -> None:
    """Check that the driver was killed, and that the retry went on."""
    assert "stages clean and weather were complete" in told
    assert "RESTORE flights_etl.delays" in told
    assert "CHECKPOINTS flights_etl.delays" in told
    assert "restore saved" in told
