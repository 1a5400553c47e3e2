"""Each bug that the log of a target exists for is found by a commit that sleeps or dies at one of its requests. Run anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.storage import Store
from tests.support.faults import Fault
from tests.unit.sinks.bugs import BUGS, Patch
from tests.unit.sinks.sleepers import STORIES, all_killed, all_slept, new_stores


def play_all(new_store: Callable[[], Store]) -> None:
    for story in STORIES:
        all_slept(new_store, story)
        for fault in (Fault.KILLED_BEFORE, Fault.KILLED_AFTER):
            all_killed(new_store, story, fault)


def test_nothing_is_found_without_a_bug(tmp_path: Path) -> None:
    play_all(new_stores(tmp_path, local=False))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch, tmp_path: Path) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, CheckpointError)):
        play_all(new_stores(tmp_path, local=False))
