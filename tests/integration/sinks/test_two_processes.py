"""A process that commits to a real PostgreSQL or aborts is stopped at each of its steps, another one ends what it began, and it wakes up.

The process is a fork of the test. It shares a JVM with it, for JDBC, and has a connection and database sessions of its own. Runs on Linux.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from airflow_checkpoint_provider.sinks.postgresql_names import Options
from tests.integration.sinks.tables import (
    FIRST,
    OVERWRITES,
    STORIES,
    WITH_RUN,
    Meanwhile,
    Target,
    abort,
    commit,
    prepared,
    retry_commits,
    run_starts_over,
    sleeping,
    tuesday_appends,
    tuesday_overwrites,
)
from tests.support.sleeping import Ended, Rounds, Sleeping, Step, at_each_step

Act = Callable[[Target, Options, Callable[[str], object]], bool]


@dataclass(frozen=True)
class Story:
    """What the old process does, what others do while it sleeps, and all rows that there may be in the end."""

    title: str
    act: Act
    options: Options
    meanwhile: Meanwhile
    ends: list[list[str]]

    def __str__(self) -> str:
        return f"{self.act.__name__}, {self.title}"


def leftovers_are_aborted(target: Target, options: Options) -> None:
    table = target.open(options=options)
    table.abort([name for name, *_ in table.leftovers()])


BOTH = ["0z", "1a", "2b"]
ALL = [
    *(Story(title, commit, options, meanwhile, [end]) for title, (options, meanwhile, end) in STORIES.items()),
    Story("leftovers are aborted", commit, Options(), leftovers_are_aborted, [BOTH, ["0z"]]),
    Story("retry commits", abort, Options(), retry_commits, [BOTH, ["0z"]]),
    Story("run starts over", abort, WITH_RUN, run_starts_over, [["0z", "8again"]]),
    Story("tuesday appends", abort, WITH_RUN, tuesday_appends, [["0z", "9today"]]),
    Story("tuesday overwrites", abort, OVERWRITES, tuesday_overwrites, [["1today"]]),
]


def old_process(target: Target, story: Story, step: Step) -> bool:
    target.client.connect_anew()
    return story.act(target, story.options, step)


def rounds_of(targets: Callable[[], Target], story: Story) -> Rounds:
    def play(at: int) -> tuple[str, Ended]:
        target = targets()
        prepared(target, story.options)
        meanwhile = sleeping(target, partial(story.meanwhile, target, story.options))
        with Sleeping(partial(old_process, target, story), at) as old:
            if old.step:
                meanwhile()
            ended = old.wake()
        if not old.step:
            meanwhile()
        assert target.rows() in story.ends
        assert target.staging() == []
        assert ended.answer == (target.outcomes()[FIRST] in ("committed", "replaced"))
        return old.step, ended

    return at_each_step(play)


@pytest.mark.slow  # tests/unit/sinks/test_two_processes.py
def test_process_that_slept_at_any_step_changes_nothing(targets: Callable[[], Target]) -> None:
    rounds = {str(story): rounds_of(targets, story) for story in ALL}
    assert {title: found.red for title, found in rounds.items() if found.red} == {}
    assert all(len(found.slept) == found.steps > 10 for found in rounds.values())
    assert sum(len(found.slept) for found in rounds.values()) >= 150
