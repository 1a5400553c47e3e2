"""A driver that commits or aborts is stopped at each of its steps, another one ends what it began, and it wakes up. Run on Linux.

Two real processes: 0 rows too many, too few, twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_checkpoint_provider.storage import S3Store, Store
from tests.support.s3server import S3Server
from tests.unit.sinks import bugs
from tests.unit.sinks.sleepers import new_stores
from tests.unit.sinks.two_processes import STORIES, Story, rounds_of

ROUNDS = 260  # in each kind of store, at least


@pytest.fixture(params=["local", "s3"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    if request.param == "local":
        return new_stores(tmp_path, local=True)
    s3: S3Server = request.getfixturevalue("s3")
    bucket, numbers = request.getfixturevalue("bucket"), itertools.count()
    return lambda: S3Store(bucket, f"target-{next(numbers)}", s3.settings())


def told(title: str) -> Story:
    return next(story for story in STORIES if str(story) == title)


def test_driver_that_slept_changes_nothing(tmp_path: Path) -> None:
    rounds = rounds_of(
        new_stores(tmp_path, local=True), told("commits, overwrite, retry commits, tuesday overwrites"), 5
    )
    assert rounds.red == []
    assert len(rounds.slept) == rounds.steps > 5


@pytest.mark.slow  # test_driver_that_slept_changes_nothing
@pytest.mark.timeout(2400)
def test_driver_that_slept_at_any_step_changes_nothing(new_store: Callable[[], Store]) -> None:
    rounds = {str(story): rounds_of(new_store, story) for story in STORIES}
    assert {title: found.red for title, found in rounds.items() if found.red} == {}
    assert all(len(found.slept) == found.steps for found in rounds.values())
    assert sum(len(found.slept) for found in rounds.values()) >= ROUNDS


@pytest.mark.slow  # test_bugs.py, in one process
@pytest.mark.parametrize(
    ("bug", "title"),
    [
        (bugs.overwrites_whatever_came_since, "commits, overwrite, tuesday overwrites"),
        (bugs.abort_is_no_entry, "commits, append, run starts over"),
        (bugs.next_entry_does_not_end_the_one_before, "commits, append, tuesday appends what was ready"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bug_makes_rounds_red(
    bug: Callable[[pytest.MonkeyPatch], None], title: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bug(monkeypatch)
    assert rounds_of(new_stores(tmp_path, local=True), told(title)).red
