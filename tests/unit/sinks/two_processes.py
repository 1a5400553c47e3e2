"""A driver in a process of its own commits or aborts, and sleeps at any of its steps while others end what it has begun. Runs on Linux.

Its steps are the calls of the store, before and after each, and what happens inside of a call: changes of a folder, requests to S3.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from airflow_checkpoint_provider.errors import OverwrittenSince, StoreUnavailable
from airflow_checkpoint_provider.sinks.log import COMMIT, CommitLog
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles
from airflow_checkpoint_provider.storage import LocalStore, S3Store, Store
from airflow_checkpoint_provider.storage.s3 import clients
from tests.support.sleeping import Ended, Rounds, Sleeping, Step, at_each_step
from tests.support.targets import MONDAY, TUESDAY, files_of, left, logged, name_of, visible
from tests.unit.sinks.sleepers import (
    READY,
    Meanwhile,
    monday,
    prepare,
    ready,
    retry_commits,
    retry_commits_and_tuesday_overwrites,
    run_starts_over,
    tuesday_appends,
    tuesday_appends_what_was_ready,
    tuesday_overwrites,
)

# Of a store, by a commit or an abort; and of a folder
CALLS = ("create", "read", "read_range", "list", "publish", "delete", "delete_under")
CHANGES = ("link", "unlink", "rename", "mkdir", "rmdir", "fsync")

# -- what the old driver does ------------------------------------------------------------------------------------------


def commits(files: PublishedFiles) -> bool:
    try:
        return files.commit(monday(files.store))
    except OverwrittenSince:
        return False


def aborts(files: PublishedFiles) -> bool:
    return bool(files.abort([name_of(1)], 0))


def old_driver(store: Store, story: Story, step: Step) -> bool:
    """Act as a driver of Monday's run. Return whether Monday's rows are committed."""
    files = PublishedFiles(store, MONDAY, overwrite=story.overwrite, patience=0)
    _tell_steps(store, step)
    while True:
        try:
            return story.act(files)
        except StoreUnavailable:  # the driver tries again
            continue


def _tell_steps(store: Store, step: Step) -> None:
    """Let this process tell each of its steps. It is a fork, so nothing is put back."""
    if isinstance(store, S3Store):
        own = clients(store.settings)
        for events in (own.once.meta.events, own.patient.meta.events):
            events.register("before-call.s3", partial(_tell_request, step, "before"))
            events.register("after-call.s3", partial(_tell_request, step, "after"))
        return
    for name in CALLS:
        setattr(LocalStore, name, _told(getattr(LocalStore, name), f"{{}} {name}", step))
    for name in CHANGES:
        setattr(os, name, _told(getattr(os, name), f"in a call, before {name}", step, after=False))


def _tell_request(step: Step, when: str, model: Any, **_: object) -> None:
    step(f"{when} {model.name}")


def _told(function: Callable[..., Any], name: str, step: Step, *, after: bool = True) -> Callable[..., Any]:
    @wraps(function)
    def told(*args: Any, **options: Any) -> Any:
        step(name.format("before"))
        answer = function(*args, **options)
        if isinstance(answer, Iterator):
            answer = iter(list(answer))
        if after:
            step(name.format("after"))
        return answer

    return told


# -- what others do meanwhile ------------------------------------------------------------------------------------------


def leftovers_are_aborted(store: Store) -> None:
    """Tomorrow's driver finds what was prepared, and that no completed checkpoint holds it."""
    files = files_of(store, TUESDAY)
    files.abort([found.name for found in files.leftovers()], 0)


def retry_commits_appending(store: Store) -> None:
    files_of(store).commit(monday(store))


def retry_commits_and_tuesday_appends(store: Store) -> None:
    retry_commits_appending(store)
    tuesday_appends(store)


@dataclass(frozen=True)
class Story:
    """What the old driver does, and what others do while it sleeps. ``ends``: all rows that there may be in the end.

    ``wrote``: what readers see as soon as the others have ended.
    """

    title: str
    act: Callable[[PublishedFiles], bool]
    overwrite: bool
    meanwhile: Meanwhile
    ends: list[list[str]]
    wrote: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.act.__name__}, {'overwrite' if self.overwrite else 'append'}, {self.title}"


BOTH = ["a", "b"]
STORIES = [
    Story("retry commits", commits, False, retry_commits_appending, [BOTH], ("a", "b")),
    Story("retry commits, tuesday appends", commits, False, retry_commits_and_tuesday_appends, [[*BOTH, "today"]], ("a", "b", "today")),
    Story("tuesday appends", commits, False, tuesday_appends, [[*BOTH, "today"]], ("today",)),
    Story(READY, commits, False, tuesday_appends_what_was_ready, [[*BOTH, "today"]], ("today",)),
    Story("run starts over", commits, False, run_starts_over, [["again"]], ("again",)),
    Story("leftovers are aborted", commits, False, leftovers_are_aborted, [BOTH, []]),
    Story("retry commits", commits, True, retry_commits, [BOTH], ("a", "b")),
    Story("tuesday overwrites", commits, True, tuesday_overwrites, [["today"]], ("today",)),
    Story("retry commits, tuesday overwrites", commits, True, retry_commits_and_tuesday_overwrites, [["today"]], ("today",)),
    Story("run starts over", commits, True, partial(run_starts_over, overwrite=True), [["again"]], ("again",)),
    Story("leftovers are aborted", commits, True, leftovers_are_aborted, [BOTH, ["before"]]),
    Story("retry commits", aborts, False, retry_commits_appending, [BOTH, []]),
    Story("tuesday appends", aborts, False, tuesday_appends, [["today"]], ("today",)),
    Story("run starts over", aborts, False, run_starts_over, [["again"]], ("again",)),
    Story("leftovers are aborted", aborts, False, leftovers_are_aborted, [[]]),
    Story("retry commits", aborts, True, retry_commits, [BOTH, ["before"]]),
    Story("tuesday overwrites", aborts, True, tuesday_overwrites, [["today"]], ("today",)),
]  # fmt: skip

# -- rounds ------------------------------------------------------------------------------------------------------------


def rounds_of(new_store: Callable[[], Store], story: Story, every: int = 1) -> Rounds:
    """Let the old driver sleep at each of its steps, or at some, each time with a new target."""

    def play(at: int) -> tuple[str, Ended]:
        store = new_store()
        prepare(store, overwrite=story.overwrite)
        ready(store, story.title)
        with Sleeping(partial(old_driver, store, story), at) as old:
            if old.step:
                story.meanwhile(store)
                check_once(store, story)
            ended = old.wake()
        if not old.step:
            story.meanwhile(store)
        check(store, story, committed=ended.answer)
        return old.step, ended

    return at_each_step(play, every)


def check_once(store: Store, story: Story) -> None:
    """Compare what readers find while the old driver is asleep: what the others wrote, and nothing twice."""
    seen = visible(store)
    assert len(seen) == len(set(seen))
    assert set(story.wrote) <= set(seen)


def check(store: Store, story: Story, *, committed: bool) -> None:
    """Compare what readers find, the log, and what the old driver was told. Nothing is left over."""
    rows = visible(store)
    assert rows in story.ends
    assert logged(store) == rows
    assert left(store) == []
    log = CommitLog(store)
    log.read()
    found = log.entry_of(name_of(1), 0)
    assert found
    assert committed == (found[1].kind == COMMIT)
    if isinstance(store, S3Store):
        uploads = clients(store.settings).patient.list_multipart_uploads(Bucket=store.bucket, Prefix=store.prefix)
        assert not uploads.get("Uploads")
