"""Mistakes of drafts about taking over a query, each as a small patch of the real code. Runs anywhere. As ``bugs``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.file_sink import rewinding
from airflow_checkpoint_provider.file_sink.log import FileSinkLog, SinkFile
from airflow_checkpoint_provider.file_sink.rewinding import Aside
from airflow_checkpoint_provider.location import copying, fence, take_over
from airflow_checkpoint_provider.location.fence import FenceEntry
from airflow_checkpoint_provider.location.files import (
    COMMITS,
    NOTHING,
    OFFSETS,
    Location,
    LocationFiles,
    Position,
    needed_files,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.commands import Decision
from airflow_checkpoint_provider.protocol.query_records import QueryRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.queries import running
from airflow_checkpoint_provider.spark.queries.location import locations
from airflow_checkpoint_provider.spark.queries.location.locations import LocatedQuery, Locations, Start
from airflow_checkpoint_provider.spark.queries.running import RunningQuery
from airflow_checkpoint_provider.spark.queries.sinks.base import WayBack
from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink
from tests.model.bugs import Patch, decided, replaced
from tests.model.queries import Kind

STATEFUL, STATELESS, IN_S3 = Kind(), Kind(stateful=False), Kind(stateful=False, s3=True)
BACK = Kind(goes_back=True)

Schedule = tuple[tuple[str, str], ...]
"""Who goes on, and where that one stops: the beginning of its next question, or "" where it must wait or has ended."""


@dataclass(frozen=True)
class Bug:
    """A mistake, the query that shows it, and what it breaks.

    Chance finds it within few rounds of ``seed``. Where chance finds it too seldom, ``schedule`` leads there.
    """

    title: str
    patch: Patch
    breaks: str
    kind: Kind = STATEFUL
    schedule: Schedule = ()
    seed: int = 0


LOCATE, FENCED, FOLLOW, HEAL = (
    Locations.locate,
    Locations._fence_newest,
    Locations._follow,
    Locations.fetch_missing_state,
)
START, STATE, NEWEST, CUT = RunningQuery.start, LocationFiles.state, fence.newest_batch, FileStreamSink._cut


# -- fencing -----------------------------------------------------------------------------------------------------------


def fenced_once(look_again: bool = True, swept: bool = True, known: bool = True) -> Callable[..., int]:
    """Return ``fence`` without some of its steps."""

    def fence_once(location: Location, entry: FenceEntry, check: Callable[[], object]) -> int:
        while True:
            begun, fenced = NEWEST(location)
            if not (fenced and known):
                begun = begun + 1 if fenced else begun
                if not fence._put(location, begun + 1, entry):
                    continue
            check()
            if swept:
                fence.delete_temporary_entries(location)
            if not look_again or NEWEST(location) == (begun, True):
                return begun

    return fence_once


def not_fenced(location: Location, entry: FenceEntry, check: Callable[[], object]) -> int:
    check()
    return NEWEST(location)[0]


def own_fence_read_back(location: Location, entry: FenceEntry, check: Callable[[], object]) -> int:
    """The fence stands, but perhaps not before anything: the log went on and was purged meanwhile."""
    while True:
        begun, fenced = NEWEST(location)
        if not fenced and not fence._put(location, begun + 1, entry):
            continue
        check()
        fence.delete_temporary_entries(location)
        if fence.fence_entry_in(location.store.read(location.key_of(f"{OFFSETS}/{begun + 1}"))):
            return begun


PAST_ITS_LAST_LOOK = (("input", "input/2"), ("A1", "rename jobs"))
FENCING = {
    "not fenced": Bug("a location that was taken over is not fenced", replaced(locations, "fence", not_fenced), "Q3"),
    "not swept": Bug(
        "temporary files stay: a driver passes its last look, sleeps, and renames over the fence",
        replaced(locations, "fence", fenced_once(swept=False)), "Q3", STATELESS, (*PAST_ITS_LAST_LOOK, ("A2", "hidden sink"), ("A1", "")),
    ),
    "not looked again": Bug(
        "the fence is not looked for once more", replaced(locations, "fence", fenced_once(look_again=False)), "Q3", STATELESS,
        (*PAST_ITS_LAST_LOOK, ("A2", "hidden jobs"), ("A1", "overwrite"), ("A2", "")),
    ),
    "own fence": Bug(
        "the fence is read back, and not looked for as the newest entry",
        replaced(locations, "fence", own_fence_read_back), "Q", STATELESS,
        (("input", "input/2"), ("A1", ""), ("A2", "create jobs/j/job/query"), ("input", "input/3"), ("A1", ""),
         ("input", "input/4"), ("A1", ""), ("input", "input/5"), ("A1", ""), ("input", ""), ("A1", ""), ("A2", "")),
    ),
    "fence unknown": Bug(
        "the fence of another taker counts as a batch", replaced(locations, "fence", fenced_once(known=False)), "Q", seed=2,
    ),
    "one look in S3": Bug(
        "no second look, though the service may still carry out a copy", replaced(take_over, "stays_fenced", lambda *_: True), "Q", IN_S3,
        (("input", "input/2"), ("A1", "landed"), ("A2", "hidden sink"), ("input", "")),
    ),
}  # fmt: skip


# -- copying and fetching -----------------------------------------------------------------------------------------------


def up_to_the_commit(self: LocationFiles, position: Position) -> tuple[str, ...]:
    return STATE(self, replace(position, begun=position.committed))


def named_first(self: Locations, *query: Any) -> LocatedQuery:
    """The entry is written before anything is copied."""
    with patch.object(locations, "copy_position", nothing):
        located = LOCATE(self, *query)
    if located.older:
        found = LocationFiles(*located.chain)
        copying.copy_files(found, located.own, needed_files(found, located.position))
    return located


@contextmanager
def newest_alone() -> Iterator[None]:
    def found(location: Location, *_: Location) -> LocationFiles:
        return LocationFiles(location)

    with patch.object(copying, "LocationFiles", found):
        yield


def nothing(*_: object) -> None:
    """Do nothing."""


def fetched_without_commit(self: Locations, located: LocatedQuery) -> bool:
    """The state is fetched only while the batch is not committed."""
    begun = located.position.begun
    own = located.own
    return begun == NOTHING or own.store.read(own.key_of(f"{COMMITS}/{begun}")) is not None


def parent_alone(self: Locations, located: LocatedQuery) -> None:
    HEAL(self, replace(located, chain=located.chain[:1]))


FINISHED_BY_ANOTHER = (
    ("input", "input/2"), ("A1", "overwrite jobs/j/job/query/q/1-A1-1-1/state"), ("A2", "hidden sink"), ("A2", "list sink"),
    ("A1", "commits"), ("A2", ""),
)  # fmt: skip
COPYING = {
    "fenced location alone": Bug(
        "what the fenced location lacks is not taken from those before it",
        newest_alone, "Q", seed=1,
    ),
    "parent alone": Bug(
        "the state is fetched from the newest of the older locations alone", replaced(Locations, "fetch_missing_state", parent_alone), "Q", STATEFUL,
        (("input", "input/2"), ("A1", "overwrite jobs/j/job/query/q/1-A1-1-1/state"), ("A2", "hidden sink"), ("A3", "hidden sink"),
         ("A1", "commits"), ("A3", "")),
    ),
    "up to the commit": Bug(
        "the state of the batch that had begun is neither copied nor fetched",
        replaced(LocationFiles, "state", up_to_the_commit), "Q", seed=1,
    ),
    "not fetched": Bug(
        "nothing is fetched from the older locations", replaced(Locations, "fetch_missing_state", lambda self, located: None), "Q", seed=7
    ),
    "fetched without commit": Bug(
        "the state is fetched only while the batch is not committed", replaced(Locations, "has_state", fetched_without_commit),
        "Q", STATEFUL, FINISHED_BY_ANOTHER,
    ),
    "not started again": Bug("a query that lost a race has failed", replaced(running, "STARTS", 1), "Q7", STATEFUL, FINISHED_BY_ANOTHER),
}  # fmt: skip


# -- naming and deleting -------------------------------------------------------------------------------------------------


def anyone(state: State, command: c.LocateQuery) -> Decision:
    """Whoever comes may name a location."""
    return (
        e.QueryLocated(
            uid=command.uid,
            path=command.path,
            taken_from=command.taken_from,
            begun=command.begun,
            committed=command.committed,
        ),
    )


def with_its_fence(location: Location) -> None:
    location.store.delete_under(location.key)
    location.store.delete([*location.store.hidden(location.key_of(OFFSETS))])


def given_up_at_once(self: RunningQuery) -> None:
    """The older locations go before the begun batch is committed."""
    if self.located.older:
        self._locations.settle(self.located)
        self._locations.delete_older(self.located)
    START(self)


@contextmanager
def deleted_with_its_fence() -> Iterator[None]:
    with (
        patch.object(locations, "delete_location", with_its_fence),
        patch.object(take_over, "delete_location", with_its_fence),
        patch.object(fence, "delete_location", with_its_fence),
    ):
        yield


NAMING = {
    "named first": Bug("the entry is written before the copy", replaced(Locations, "locate", named_first), "Q", seed=9),
    "two takers": Bug("whoever comes may name a location", decided(c.LocateQuery, anyone), "Q", STATELESS),
    "fence deleted": Bug(
        "the fence goes with its location", deleted_with_its_fence, "Q", STATELESS
    ),
    "given up at once": Bug("older locations go before their batch is committed", replaced(RunningQuery, "start", given_up_at_once), "Q", seed=7),
    "orphans stay": Bug("copies that no entry names stay", replaced(garbage, "QUERY", "nothing"), "Q"),
}  # fmt: skip


# -- going back ----------------------------------------------------------------------------------------------------------


def left_open(self: Locations, query: QueryRecord) -> tuple[int, float]:
    """A query that goes back leaves its location open."""
    if self._attempt.journal.state.branch.goes_back(query):
        return NEWEST(self._at(query.newest.path))[0], 0.0
    return FENCED(self, query)


def not_finished(
    self: Locations, query: QueryRecord, start: Start, own: Location
) -> tuple[Position, e.GoneBack | None]:
    """Nobody moves a sink for an attempt that was killed before it did."""
    forgotten = replace(query, locations=(replace(query.newest, gone_back=None),))
    return FOLLOW(self, forgotten, start, own)


def next_one(self: FileStreamSink, begun: int) -> int:
    """The numbers of the batches that were left are used again."""
    return begun


def moved_at_once(log: FileSinkLog, aside: Aside, kept: Sequence[SinkFile]) -> None:
    """Whatever the log names."""
    for file in aside.manifest.files:
        log.files_of.move(file.name, aside.key(file.name), file.bytes)


def moved_first(self: FileStreamSink, way: WayBack, name: str, files: Sequence[SinkFile]) -> None:
    """The files go before the log is cut."""
    with patch.object(rewinding, "cut", moved_at_once):
        CUT(self, way, name, files)
    CUT(self, way, name, files)


GOING_BACK = {
    "left open": Bug("a query goes back and leaves its location open", replaced(Locations, "_fence_newest", left_open), "Q", BACK, seed=4),
    "not finished": Bug(
        "nobody finishes what was killed on its way back", replaced(Locations, "_follow", not_finished), "Q", BACK,
        (("input", "input/2"), ("A1", ""), ("saver", ""), ("input", "input/4"), ("A1", ""), ("person", ""), ("A2", "overwrite sink")),
    ),
    "numbers used twice": Bug("batches get numbers that are in use", replaced(FileStreamSink, "next_number", next_one), "Q", BACK, seed=4),
    "moved first": Bug(
        "files are moved while the log of the sink still names them", replaced(FileStreamSink, "_cut", moved_first), "Q8", BACK, seed=4,
    ),
}  # fmt: skip


BUGS = FENCING | COPYING | NAMING | GOING_BACK
