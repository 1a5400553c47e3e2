"""What a driver finds prepared in a target, and by whom. Runs anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles
from airflow_checkpoint_provider.spark.sinks import leftovers
from airflow_checkpoint_provider.spark.sinks.base import Leftover
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import driver
from tests.support.journals import KEYS
from tests.support.targets import MONDAY, files_of, name_of, staged, visible

OURS = Keys("jobs/b/job")


@dataclass
class Opened:
    """The sink of this job's driver."""

    files: PublishedFiles

    def leftovers(self) -> list[Leftover]:
        return [Leftover(left.name, left.by.history, left.by.incarnation) for left in self.files.leftovers()]

    def abort(self, names: list[str]) -> tuple[str, ...]:
        return self.files.abort(names, 0)


def abort_leftovers(root: MemoryStore, files: PublishedFiles, carried: set[str]) -> None:
    attempt: Any = SimpleNamespace(keys=OURS, store=root, epoch=2)
    leftovers.abort_leftovers(attempt, files.by, cast(Any, Opened(files)), carried)


def theirs(root: MemoryStore, target: MemoryStore, *, over: bool, epoch: int = 1, **by: Any) -> Any:
    """Return a write that a driver of another job has prepared; ``over``: the driver has failed since."""
    other = driver(root)
    wrote = replace(MONDAY, **{"history": other.folder, **by})
    waiting = staged(files_of(target, wrote), name_of(1, epoch), "row")
    if over:
        other.end_attempt(c.EndAttempt(epoch=1, outcome="failed", exit_code=1))
    return waiting


def ours(root: MemoryStore, target: MemoryStore) -> PublishedFiles:
    return files_of(target, replace(MONDAY, history=OURS.folder(root.uri), run="tuesday"))


@pytest.mark.parametrize("carried", [True, False])
def test_row_of_another_history_stays_if_this_job_has_started_from_it(carried: bool) -> None:
    """The other history has given its savepoint away, say: it does not hold the row any more."""
    root, target = MemoryStore("lake"), MemoryStore("target")
    waiting = theirs(root, target, over=True)
    files = ours(root, target)
    abort_leftovers(root, files, {waiting.name} if carried else set())
    assert files.commit(waiting) == carried
    assert visible(target) == (["row"] if carried else [])


@pytest.mark.parametrize("absent", [False, True], ids=["its driver lives", "it is not on this host"])
def test_row_of_a_history_that_may_live_is_not_aborted(absent: bool) -> None:
    """Another host may have a folder of the same name: a history that is not below it here may have a living driver there."""
    root, target = MemoryStore("lake"), MemoryStore("target")
    waiting = theirs(root, target, over=False)
    abort_leftovers(MemoryStore("lake") if absent else root, ours(root, target), set())
    assert ours(root, target).commit(waiting)
    assert visible(target) == ["row"]


MOVED, INCARNATION = f"s3://lake/before/{KEYS.prefix}", "1ncarnation"


@pytest.mark.parametrize(
    ("epoch", "by", "aborted"),
    [
        pytest.param(1, {"incarnation": INCARNATION}, True, id="it was moved"),
        pytest.param(1, {"incarnation": "0ther"}, False, id="another history of that name"),
        pytest.param(1, {}, False, id="of an earlier version"),
        pytest.param(2, {"incarnation": INCARNATION}, False, id="it was copied, and its original goes on"),
    ],
)
def test_row_of_a_history_with_another_root_is_aborted_only_if_it_is_this_one(
    epoch: int, by: dict[str, str], aborted: bool
) -> None:
    root, target = MemoryStore("lake"), MemoryStore("target")
    waiting = theirs(root, target, over=True, epoch=epoch, **{"history": MOVED, **by})
    abort_leftovers(root, ours(root, target), set())
    assert ours(root, target).commit(waiting) == (not aborted)


@pytest.mark.parametrize(("incarnation", "aborted"), [("1nc", True), ("0ther", False)])
def test_own_row_is_known_by_the_incarnation(incarnation: str, aborted: bool) -> None:
    """The root was moved since; or another host has a history at this path, whose driver may live."""
    root, target = MemoryStore("lake"), MemoryStore("target")
    before = "s3://lake/before" if aborted else root.uri
    wrote = replace(MONDAY, history=OURS.folder(before), incarnation=incarnation)
    waiting = staged(files_of(target, wrote), name_of(1), "row")
    files = files_of(target, replace(MONDAY, history=OURS.folder(root.uri), incarnation="1nc"))
    abort_leftovers(root, files, set())
    assert files.commit(waiting) == (not aborted)
