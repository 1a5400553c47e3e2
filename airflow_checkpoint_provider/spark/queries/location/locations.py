"""The checkpoint location of each query in this attempt: taken over from an older attempt, or begun. Runs in the Spark driver.

A query continues after the batches of its newest location, also if the newest checkpoint is older: its sink already has these batches. The
location of the older attempt is fenced first, and then copied into one of this attempt. A batch that had begun there runs again, with the
same offsets.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace

from airflow_checkpoint_provider.errors import (
    Damaged,
    NotSupportedYet,
    RenameConflict,
    SinkMoved,
    SourceMoved,
    WrongUse,
)
from airflow_checkpoint_provider.location.copying import (
    chain_at,
    copy_position,
    copy_saved,
    fetch_state,
    has_state,
    saved_location,
    write_beginnings,
)
from airflow_checkpoint_provider.location.fence import FenceEntry, delete_location, fence, reached
from airflow_checkpoint_provider.location.files import NOTHING, Location, Position, location_at
from airflow_checkpoint_provider.location.take_over import take_over
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.keys import file_set_epoch, location_path
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_records import QueryRecord
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.location.adopting import examine_adopted, refuse_copy, refuse_fenced
from airflow_checkpoint_provider.spark.queries.location.rescaling import Rescaling
from airflow_checkpoint_provider.spark.queries.location.restored_links import Links
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink, WayBack
from airflow_checkpoint_provider.spark.queries.sources.reading import Reading
from airflow_checkpoint_provider.spark.queries.sources.source_rows import SourceRows
from airflow_checkpoint_provider.text import query_messages


@dataclass(frozen=True)
class Start:
    """A query that the script starts: its restored state, its sink, its sources, and the arguments of ``start_query``."""

    uid: str
    restored: StateSnapshot | None
    sink: StreamSink
    sources: SourceRows
    links: Links
    """Its links to other queries of the restored checkpoint."""
    adopt: str | None
    """A location outside of the root. The query has no location here yet, or its location here still needs files there."""
    rescaling: Rescaling | None
    after: tuple[str, ...] = ()
    """The queries whose rows it reads."""


@dataclass(frozen=True)
class LocatedQuery:
    """The location of a query in this attempt, and the newest batches there."""

    uid: str
    path: str
    own: Location
    chain: tuple[Location, ...]
    """The locations from which it was copied, the newest first."""
    older: tuple[Location, ...]
    """The locations that it replaces. If the query has gone back, it was copied from none of them."""
    position: Position
    gone_back: GoneBack | None = None


class Locations:
    """Makes the locations of this attempt's queries, and names them in the journal before a query uses them."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        # uid -> newest batch in its older location, and the time of the fence
        self._fences = dict[str, tuple[int, float]]()

    def locate(self, start: Start) -> LocatedQuery:
        """Make the location in which the query runs in this attempt: from its newest one, or from a checkpoint, or empty.

        Checks that may refuse come first. Until they pass, only an unused copy exists; the older location is already fenced. Batches are
        marked as written in an empty sink before the journal names the location: if this attempt is killed between the two steps, the next
        one repeats them. A sink goes back after the journal names the location: the next attempt then reads in the journal that the sink
        must go back, and to which batch.

        Raises ``SinkMoved`` if the query must not go on there, ``SourceMoved`` if a source lacks rows that it reads next, ``Damaged`` if
        the newest location lacks a file, ``StoreError``, ``SourceUnavailable``, ``QueryMoved``, and the errors of ``rescaling``.
        """
        query = self._attempt.journal.state.query(start.uid)
        located = self._copy(start, query)
        self._compare(start, query, located)
        located = self._rescaled(start, located)
        if located.gone_back:
            self._name(located, query, start)
            start.sink.rewind(self._way(located.path, located.gone_back, located.position.committed))
        else:
            start.sink.mark_batches_written(located.position.committed, None if query else start.links.in_flight)
            self._name(located, query, start)
        return located

    def _copy(self, start: Start, query: QueryRecord | None) -> LocatedQuery:
        """Copy the files that the query needs into a new location: from the one in which it ran, or from a checkpoint."""
        uid, path = start.uid, self._new_path(start.uid)
        own, chain, gone_back = self._at(path), tuple[Location, ...](), None
        if query:
            if not self._goes_back(query):
                self._refuse_rewound_upstream(query, start)
                start.links.in_flight.refuse_another_sink(query.newest.sink, start.sink.path)
            position, gone_back = self._follow(query, start, own)
            chain = () if gone_back else self._chain(query, start.adopt)
        elif start.adopt is not None:
            chain = (self._adoptable(start, start.adopt),)
            position = self._adopt(uid, chain[0], own)
        else:
            self._refuse_another_location(uid)
            position = self._copy_checkpoint(start, own)
        start.sink.location = own
        return LocatedQuery(uid, path, own, chain, self._older(query) if query else (), position, gone_back)

    def _compare(self, start: Start, query: QueryRecord | None, located: LocatedQuery) -> None:
        """Raise an error unless the query can continue in its location: its sources have the rows, and its sink has the batches. If it has
        gone back, ``plan_rewind`` has already compared the sink.
        """
        position, gone_back = located.position, located.gone_back
        start.sources.check_can_continue(
            self._reading(query, located.own, position, gone_back, adopted=bool(located.chain))
        )
        if gone_back:
            return
        before = query.newest.sink if query else None
        if query and before == start.sink.path:
            start.sink.rewrite_batch_marker(position)
        start.sink.check_can_continue(position, _known_sinks(query, start.restored))
        if before and before != start.sink.path and position.begun > position.committed:
            new = start.sink.path or f"its new sink, {start.sink.target.format}"
            say(query_messages.batch_in_two_sinks(start.uid, position.begun, before, new))

    def _reading(
        self,
        query: QueryRecord | None,
        own: Location,
        position: Position,
        gone_back: GoneBack | None = None,
        *,
        adopted: bool = False,
    ) -> Reading:
        """Return where a query reads on. If it has gone back, it reads rows again that it has read in its older locations."""
        back = bool(gone_back or (query and query.newest.gone_back))
        left = self._older(query) if query and back else ()
        batch = gone_back.batch if gone_back else position.committed
        return Reading(own, position, batch, left, restored=back or not (query or adopted))

    def _way(self, location: str, gone_back: GoneBack, number: int) -> WayBack:
        state = self._attempt.journal.state
        return WayBack(state.job, location, gone_back, number, state.item)

    def _new_path(self, uid: str) -> str:
        return location_path(uid, self._attempt.epoch, secrets.token_hex(8))

    def _rescaled(self, start: Start, draft: LocatedQuery) -> LocatedQuery:
        """Return the location of the query in which its state has the number of partitions that the script wants."""
        rescaling, position = start.rescaling, draft.position
        if rescaling is None or not rescaling.needed(draft.own, position):
            return draft
        path = self._new_path(draft.uid)
        located = replace(draft, path=path, own=self._at(path))
        say(rescaling.rescale(draft.own, located.own, position.committed))
        delete_location(draft.own)
        start.sink.location = located.own
        return located

    def _refuse_rewound_upstream(self, query: QueryRecord, start: Start) -> None:
        """Raise ``SinkMoved`` if a query whose files this one reads has gone back since this one ran: it has written rows again, in
        files that this one has not read.
        """
        state = self._attempt.journal.state
        for upstream in filter(None, map(state.query, start.after)):
            if upstream.newest.rewound > query.newest.branch:
                raise SinkMoved(wording.upstream_went_back(state, query.uid, upstream.uid))

    def _refuse_another_location(self, uid: str) -> None:
        """Raise an error for a query that continues elsewhere, where it would not be fenced: under another name, because a restore has
        renamed it, or without this package, because it was released.
        """
        state = self._attempt.journal.state
        if released := state.released_query(uid):
            raise WrongUse(
                f"query '{uid}' was released to {released.to}, and continues there without this package. adopt={released.to!r} takes it"
                " over again; another uid may write to another path"
            )
        for query in state.queries:
            if uid in query.was:
                raise RenameConflict(
                    f"query '{uid}' is called '{query.uid}' since a restore with rename=. Start it under that name, or another job_id"
                    " from the checkpoint"
                )

    def _chain(self, query: QueryRecord, adopt: str | None) -> tuple[Location, ...]:
        """Return the newest location, and those from which it was copied. Raises ``NotNamed``."""
        return chain_at(self._attempt.store, self._attempt.keys, query, adopt)

    def _older(self, query: QueryRecord) -> tuple[Location, ...]:
        return tuple(self._at(location.path) for location in query.locations)

    def _at(self, path: str) -> Location:
        return Location(self._attempt.store, self._attempt.keys.file_set(path))

    def _follow(self, query: QueryRecord, start: Start, own: Location) -> tuple[Position, GoneBack | None]:
        """Take over the newest location, to continue there or to go back. Return the position of the query in ``own``."""
        old = start.sink.location = self._at(query.newest.path)

        def copy(position: Position) -> tuple[Position, GoneBack | None]:
            _refuse_loss(query, position, start.restored)
            self._finish_way_back(query, start, old, position)
            if self._goes_back(query) and not self._stands_there(query, position, start.restored):
                return self._gone_back(query, position, start, own)
            copy_position(self._chain(query, start.adopt), position, own)
            return position, None

        return take_over(old, own, lambda: self._fence_newest(query), copy)

    def _finish_way_back(self, query: QueryRecord, start: Start, old: Location, position: Position) -> None:
        """Let the sink go back if the journal says so and no batch was committed since. The attempt that decided it may have been killed or
        suspended before it did so.
        """
        newest = query.newest
        if newest.gone_back is None or position != Position(newest.begun, newest.committed):
            return
        if not self._goes_back(query):
            start.sources.check_can_continue(self._reading(query, old, position))
        start.sink.rewind(self._way(newest.path, newest.gone_back, newest.committed))

    def _goes_back(self, query: QueryRecord) -> bool:
        return self._attempt.journal.state.branch.goes_back(query)

    def _adoptable(self, start: Start, uri: str) -> Location:
        """Return the location at ``uri``, which the query may take over. Nothing is changed."""
        uid, released = start.uid, self._attempt.journal.state.released_query(start.uid)
        if start.restored and not released:
            raise WrongUse(
                f"query '{uid}' starts from a checkpoint, and adopt={uri!r} names another place. Leave adopt out"
            )
        location = location_at(self._attempt.store, uri)
        if released and location.uri != released.to:
            raise WrongUse(
                f"query '{uid}' was released to {released.to}, and continues there. Write adopt={released.to!r}"
            )
        start.sink.location = location
        examine_adopted(location, uid, self._attempt.journal.state.incarnation, start.sink)
        refuse_copy(
            location, uid, {query.uid: self._at(query.newest.path) for query in self._attempt.journal.state.queries}
        )
        position = _position_elsewhere(start, location)
        if start.rescaling:
            start.rescaling.refuse_to_adopt(location, position)
        return location

    def _adopt(self, uid: str, old: Location, own: Location) -> Position:
        """Take over a location from elsewhere."""
        state = self._attempt.journal.state
        say(query_messages.adopted(uid, old.uri, state))

        def copy(position: Position) -> Position:
            refuse_fenced(old, uid, state.incarnation)  # another job may have been faster
            copy_position((old,), position, own)
            return position

        return take_over(old, own, lambda: self._fence(uid, old), copy)

    def _gone_back(self, query: QueryRecord, left: Position, start: Start, own: Location) -> tuple[Position, GoneBack]:
        """Copy the files of a query in a checkpoint, under batch numbers that were never used. ``left``: the position from which it goes
        back.
        """
        restored, sink = start.restored, start.sink
        to = position_of(restored)
        if restored is None or restored.query is None or to.committed == NOTHING:
            state = self._attempt.journal.state
            raise NotSupportedYet(wording.cannot_be_rewound(query.uid, wording.BEGINS_ANEW, state))
        sink.location = saved_location(restored, self._attempt.store, self._attempt.keys)
        gone_back = sink.plan_rewind(restored.query, allowed=self._attempt.journal.state.branch.rewind_sink)
        if sink.path and sink.path != restored.query.path:
            start.links.in_flight.refuse_elsewhere(sink.path)
        number = sink.next_number(left.begun)
        self._copy_checkpoint(start, own, number - to.committed)
        return Position(number + to.begun - to.committed, number), gone_back

    def _fence_newest(self, query: QueryRecord) -> tuple[int, float]:
        """Return the newest batch that has begun in the newest location of a query, and the time of the fence.

        The first query fences the locations of all queries of older attempts, so that the waits of ``stays_fenced`` do not add up.
        """
        state, epoch = self._attempt.journal.state, self._attempt.epoch
        older = [known for known in state.queries if file_set_epoch(known.newest.path) != epoch]
        for known in older if query.uid not in self._fences else ():
            try:
                self._fences[known.uid] = self._fence(known.uid, self._at(known.newest.path))
            except Damaged:  # the start of that query raises it again, and the others can go on
                if known.uid == query.uid:
                    raise
        return self._fences.pop(query.uid)  # if a batch was faster, it is fenced anew

    def _fence(self, uid: str, location: Location) -> tuple[int, float]:
        """Fence a location. Return the newest batch that has begun there, and the time of the fence."""
        state = self._attempt.journal.state
        by = f"attempt {self._attempt.epoch} of {state.job}"
        entry = FenceEntry(state.incarnation, uid, secrets.token_hex(16), by)
        return fence(location, entry, self._attempt.writer.catch_up), time.monotonic()

    def _stands_there(self, query: QueryRecord, position: Position, restored: StateSnapshot | None) -> bool:
        """Return whether a query that shall go back to a checkpoint is there already, as after a stop with a savepoint.

        In one history no batch number is used twice. A savepoint from elsewhere may be a copy of a savepoint of this history. If another
        version of the script has begun a batch since, the query is not there: it goes back to the position before that batch.
        """
        saved, point = restored.query if restored else None, self._attempt.restored.point
        if position_of(restored).committed != position.committed:
            return False
        if position.begun != position.committed and not (saved and saved.location == query.newest.path):
            return False
        if saved and saved.edges and position.begun not in (position.committed, saved.begun):
            return False  # the batch may have read rows that its upstream takes back
        known = {query.newest.taken_from, *(location.path for location in query.locations)}
        return saved is None or (point is not None and point.pointer is None) or saved.location in known

    def _copy_checkpoint(self, start: Start, own: Location, by: int = 0) -> Position:
        """Copy the files of a query in a checkpoint. ``by`` is added to the numbers of its batches."""
        position = position_of(start.restored)
        if start.restored:
            copied = copy_saved(start.restored, self._attempt.store, self._attempt.keys, own, by=by)
            if by:
                write_beginnings(own, copied, position.committed, by)
        for move in start.links.moves:
            move.carry_out(own)
        return position

    def _name(self, located: LocatedQuery, query: QueryRecord | None, start: Start) -> None:
        """Write the journal entry that names the location. Until then the location is only an unused copy."""
        adopted = located.chain[0].uri if located.chain and not query else None
        command = c.LocateQuery(
            uid=located.uid,
            path=located.path,
            taken_from=query.newest.path if query else None,
            begun=located.position.begun,
            committed=located.position.committed,
            epoch=self._attempt.epoch,
            gone_back=located.gone_back,
            adopted=adopted,
            sink=start.sink.path,
            format=start.sink.target.format,
            after=start.after,
        )
        self._attempt.writer.append(command)

    def fetch_missing_state(self, located: LocatedQuery) -> None:
        """Fetch the state of the batch that had begun from the older locations, as far as this location lacks it.

        Another driver may have finished the batch in the sink after this location was copied. Then the sink skips the batch here, and no
        other process writes its state.
        """
        fetch_state(located.own, located.chain, located.position)

    def has_state(self, located: LocatedQuery) -> bool:
        """Return whether the state of the batch that had begun is whole in the query's own location."""
        return has_state(located.own, located.chain, located.position)

    def settle(self, located: LocatedQuery) -> None:
        """Give up the older locations: this one holds everything that they held."""
        self._attempt.writer.append(c.SettleQuery(uid=located.uid, path=located.path, epoch=self._attempt.epoch))

    def delete_older(self, located: LocatedQuery) -> None:
        """Delete the locations that were given up, except for their fences."""
        for older in located.older:
            self._attempt.writer.check_deleting()
            delete_location(older)


def _position_elsewhere(start: Start, location: Location) -> Position:
    """Return the position of a query that may still run elsewhere. Raises ``SourceMoved`` if its sources lack rows that it reads next."""
    while True:
        position = reached(location)
        try:
            start.sources.check_can_continue(Reading(location, position, position.committed))
        except SourceMoved:
            if (
                reached(location) == position
            ):  # else the query itself may have read these rows since, and let them be deleted
                raise
        else:
            return position


def _refuse_loss(query: QueryRecord, position: Position, restored: StateSnapshot | None) -> None:
    """Raise ``Damaged`` if the newest location lacks batches that the journal or the restored checkpoint knows."""
    newest, saved = query.newest, restored.query if restored else None
    known = max(newest.committed, saved.batch if saved and saved.location == newest.path else NOTHING)
    if position.begun < newest.begun or position.committed < known:
        raise Damaged(
            f"query '{query.uid}': its location {newest.path} has batches up to {position.committed}, and had {max(known, newest.begun)};"
            " somebody or something deleted files there. Nothing was started. Start another job_id with restore=<pointer> of a"
            " checkpoint, which writes to another path"
        )


def _known_sinks(query: QueryRecord | None, restored: StateSnapshot | None) -> set[str | None]:
    """Return the paths and tables to which the query has written."""
    return {query.newest.sink if query else None, restored.query.path if restored and restored.query else None}


def position_of(restored: StateSnapshot | None) -> Position:
    """Return the position of a query in a checkpoint."""
    query = restored.query if restored else None
    return Position(query.begun, query.batch) if query else Position()
