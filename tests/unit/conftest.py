"""Property tests that try the same examples every time, however slow the machine is; and no waiting for the disk."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk, some milliseconds for each write: what a kill leaves is in the kernel. Calls can still be watched."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
