"""Commits that sleep or die before any of their requests, and what others do meanwhile. Run anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from airflow_checkpoint_provider.errors import OverwrittenSince, StoreUnavailable
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, Store
from tests.support.faults import Call, Fault, FaultyStore, Killed
from tests.support.targets import MONDAY, TUESDAY, files_of, left, logged, name_of, staged, visible

MOST_REQUESTS = 60
Meanwhile = Callable[[Store], None]


def tuesday_overwrites(store: Store) -> None:
    files = files_of(store, TUESDAY, overwrite=True)
    files.commit(staged(files, name_of(9), "today"))


def retry_commits(store: Store) -> None:
    files_of(store, overwrite=True).commit(monday(store))


def retry_commits_and_tuesday_overwrites(store: Store) -> None:
    retry_commits(store)
    tuesday_overwrites(store)


def run_starts_over(store: Store, *, overwrite: bool = False) -> None:
    """A cleared task gives up what its run has prepared, and computes all again."""
    files = files_of(store, replace(MONDAY, generation=1), overwrite=overwrite)
    committed = files.abort([name_of(1)], 0)
    files.commit(staged(files, name_of(8), "again", replaces=committed))


def tuesday_appends(store: Store) -> None:
    files = files_of(store, TUESDAY)
    files.commit(staged(files, name_of(9), "today"))


def tuesday_appends_what_was_ready(store: Store) -> None:
    """Tuesday's run has begun before, so it reads the log only when it commits."""
    PublishedFiles(store, TUESDAY, overwrite=False, patience=0).commit(TUESDAYS[store_of(store)])


def monday(store: Store) -> Transaction:
    """Return Monday's transaction, as the journal keeps it."""
    return MONDAYS[store_of(store)]


MONDAYS: dict[int, Transaction] = {}
TUESDAYS: dict[int, Transaction] = {}


def store_of(store: Store) -> int:
    return hash(store.uri)


READY = "tuesday appends what was ready"
STORIES: dict[str, tuple[bool, Meanwhile, list[list[str]]]] = {
    "tuesday overwrites": (True, tuesday_overwrites, [["today"]]),
    "retry commits, tuesday overwrites": (True, retry_commits_and_tuesday_overwrites, [["today"]]),
    "retry commits": (True, retry_commits, [["a", "b"]]),
    "run starts over": (False, run_starts_over, [["again"]]),
    "tuesday appends": (False, tuesday_appends, [["a", "b", "today"]]),
    READY: (False, tuesday_appends_what_was_ready, [["a", "b", "today"]]),
}


class Sleeper:
    """Runs ``meanwhile`` just before request ``number`` of a process."""

    def __init__(self, number: int, meanwhile: Callable[[], None]) -> None:
        self.number, self.meanwhile, self.slept = number, meanwhile, False

    def __call__(self, call: Call) -> Fault:
        if call.number == self.number and not self.slept:
            self.slept = True
            self.meanwhile()
        return Fault.NONE


def new_stores(folder: Path, *, local: bool) -> Callable[[], Store]:
    """Return a function that makes a new target each time."""
    numbers = itertools.count()

    def new() -> Store:
        name = f"{folder}/t{next(numbers)}"
        return LocalStore(name, private=False) if local else MemoryStore(name)

    return new


def prepare(store: Store, *, overwrite: bool) -> None:
    """Let Monday's run prepare its rows in a target that holds some already."""
    store.create("part-0.csv", b"before" if overwrite else b"")
    files = files_of(store, overwrite=overwrite)
    MONDAYS[store_of(store)] = staged(files, name_of(1), "a", "b")


def ready(store: Store, story: str) -> None:
    """Let Tuesday's run prepare its rows before Monday's commit, if the story says so."""
    if story == READY:
        TUESDAYS[store_of(store)] = staged(files_of(store, TUESDAY), name_of(9), "today")


def check(store: Store, expected: list[list[str]], when: str) -> None:
    """Compare what a reader finds who lists the folder, and what the log says."""
    assert visible(store) in expected, when
    assert logged(store) == visible(store), when
    assert left(store) == []


def all_slept(new_store: Callable[[], Store], story: str) -> int:
    """Let Monday's commit sleep before each of its requests. Return how often."""
    overwrite, meanwhile, expected = STORIES[story]
    for number in range(1, MOST_REQUESTS):
        store = new_store()
        prepare(store, overwrite=overwrite)
        ready(store, story)
        sleeper = Sleeper(number, lambda store=store: meanwhile(store))  # type: ignore[misc]
        asleep = PublishedFiles(FaultyStore(store, sleeper), MONDAY, overwrite=overwrite, patience=0)
        with suppress(OverwrittenSince):
            asleep.commit(monday(store))
        if not sleeper.slept:
            return number - 1
        check(store, expected, f"slept before request {number}")
    raise AssertionError("the commit does not end")


def all_killed(new_store: Callable[[], Store], story: str, fault: Fault) -> int:
    """Let Monday's commit die at each of its requests. Return how often."""
    overwrite, meanwhile, expected = STORIES[story]
    for number in range(1, MOST_REQUESTS):
        store = new_store()
        prepare(store, overwrite=overwrite)
        ready(store, story)
        plan = lambda call, number=number: fault if call.number == number else Fault.NONE  # noqa: E731
        faulty = FaultyStore(store, plan)
        dying = PublishedFiles(faulty, MONDAY, overwrite=overwrite, patience=0)
        with suppress(Killed, StoreUnavailable):
            dying.commit(monday(store))
        if faulty.requests.total() < number:
            return number - 1
        meanwhile(store)
        if story != "run starts over":
            with suppress(OverwrittenSince):
                files_of(store, overwrite=overwrite).commit(monday(store))
        check(store, expected, f"{fault} at request {number}")
    raise AssertionError("the commit does not end")
