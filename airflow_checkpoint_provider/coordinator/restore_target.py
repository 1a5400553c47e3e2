"""The target of a deliberate restore, as a person or a task names it. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.assignment import renamed
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.histories import FoundHistory, earliest_offsets
from airflow_checkpoint_provider.coordinator.restore import Restored, examine, resolve
from airflow_checkpoint_provider.errors import CheckpointNotFound, NotSupportedYet, SinkMoved, SourceMoved
from airflow_checkpoint_provider.location.files import NOTHING, Location
from airflow_checkpoint_provider.location.restored_files import ReadAgain, read_again
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.commands import Restore
from airflow_checkpoint_provider.protocol.events import Point, Token
from airflow_checkpoint_provider.protocol.kafka_offsets import deleted
from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.query_details import DELTA, FILE_SINKS, FOREACH_BATCH, ICEBERG, QueryDetail
from airflow_checkpoint_provider.protocol.query_records import QueryRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Store


def _named_point(
    where: str, state: State, run: str, store: Store, incarnation: str
) -> tuple[Point | None, dict[str, str]]:
    """Return the point that a deliberate restore names, and the new names of its states.

    Besides the texts of ``resolve``, it accepts "latest" and "run-start" of a run. For these two, the names are those under which the job
    knows the states.
    """
    if where == "latest":
        point = state.restore_point()
        return point, state.branch.rename if point == state.branch.base else {}
    if where != "run-start":
        point = resolve(where, state, store, incarnation)
        again = point is not None and point.pointer is not None and point == state.branch.base
        return point, state.branch.rename if again else {}
    listed = state.run(run)
    if listed is None:
        raise CheckpointNotFound(
            f"run {run!r} is not listed any more, so the checkpoint from which it started is unknown; name a checkpoint"
        )
    return listed.started_from, listed.rename


@dataclass(frozen=True)
class GoingBack:
    """A query that goes back: its present name, and how the restore point holds it."""

    uid: str
    saved: QueryDetail


class RestoreTarget:
    """The target of a deliberate restore: resolved in the state on which the journal decides, and verified there."""

    def __init__(self, coordinator: Coordinator, where: str, run: str, incarnation: str = "") -> None:
        self._coordinator, self._where, self._run, self._incarnation = coordinator, where, run, incarnation
        self.state = State()
        self.restored = Restored()
        self._names: dict[str, str] = {}

    def verify(self, state: State) -> Point | None:
        """Return the verified point. Raises ``CheckpointNotFound``, ``Damaged``."""
        store = self._coordinator.store
        base, self._names = _named_point(self._where, state, self._run, store, self._incarnation)
        if self.state.n < 0 or base != self.restored.point:
            self.restored = examine(self._coordinator, state, base, named=self._where != "latest", told=self._where)
        self.state = state
        return base

    def names(self, rename: Mapping[str, str]) -> dict[str, str]:
        """Return all new names of the point's states, by their stored names; ``rename`` holds the additional names.

        Raises ``StateNotFound``, ``RenameConflict``.
        """
        names = {**self._names, **rename}
        renamed(self.restored.seal.states if self.restored.seal else {}, names)
        return names

    def command(
        self, token: Token, by: str, reason: str, *, claim: bool, rename: Mapping[str, str], rewind_sink: bool
    ) -> Restore:
        """Return the command that restores the point that was verified last.

        Raises ``SinkMoved`` if the sink of a streaming query is ahead of the point, and ``rewind_sink`` does not allow to take rows out of
        it; ``SourceMoved`` if Kafka has deleted rows that a query would read again; ``NotSupportedYet`` if a query cannot go back.
        """
        names, rewinds = self.names(rename), self._where != "latest"
        if rewinds:
            self._refuse_to_begin_anew()
            self._refuse_queries(names, rewind_sink=rewind_sink)
        return Restore(
            token=token,
            base=self.restored.point,
            by=by,
            reason=reason,
            id_floor=self.restored.id_floor,
            claimed=claim,
            rename=names,
            rewind_queries=rewinds,
            rewind_sink=rewind_sink,
        )

    def read_again(self, names: Mapping[str, str]) -> list[ReadAgain]:
        """Return the files that the queries of the point read again. Raises ``Damaged``."""
        restored, found = self.restored, list[ReadAgain]()
        store, keys = restored.store, restored.keys
        if restored.seal is None or store is None or keys is None or self._where == "latest":
            return found
        sinks = [query.newest.sink for query in self.state.queries if query.newest.sink]
        for snapshot in restored.seal.states.values():
            uid, saved = names.get(snapshot.uid, snapshot.uid), snapshot.query
            if saved is None:
                continue
            query, of_history = self.state.query(uid), restored.point is not None and restored.point.pointer is None
            back = query and of_history and self._newest_batch(query) > saved.batch
            left = self._location(query) if query and back else None
            again = read_again(uid, snapshot, saved, store, keys, left, sinks)
            found += [again] if again else []
        return found

    def _refuse_queries(self, names: Mapping[str, str], *, rewind_sink: bool) -> None:
        """Raise an error for a query that cannot go back, before anything is fenced. The driver compares the sinks themselves.

        A query that the checkpoint does not hold is left to the driver: the script may not start it any more.
        """
        for query, saved, newest in self._behind(names):
            self._refuse_deleted(query.uid, saved)
            if saved.batch == NOTHING:
                raise NotSupportedYet(wording.cannot_be_rewound(query.uid, wording.BEGINS_ANEW, self.state))
            if saved.sink == FOREACH_BATCH:
                raise NotSupportedYet(wording.cannot_be_rewound(query.uid, wording.OWN_FUNCTION, self.state))
            if saved.sink in (*FILE_SINKS, DELTA, ICEBERG) and not rewind_sink:
                why = wording.sink_is_ahead(query.uid, saved.path, saved, self.state, self._where)
                raise SinkMoved(f"{why}. Nothing was changed", sink=newest, checkpoint=saved.batch)

    def going_back(self, names: Mapping[str, str]) -> list[GoingBack]:
        """Return the queries that go back to a batch of the point."""
        back = self._behind(names) if self._where != "latest" else ()
        return [GoingBack(query.uid, saved) for query, saved, _ in back]

    def _behind(self, names: Mapping[str, str]) -> Iterator[tuple[QueryRecord, QueryDetail, int]]:
        """Yield the queries that have committed batches after the point, how it holds them, and the newest batch of each."""
        restored = self.restored
        if restored.point is None or restored.point.pointer is not None or restored.seal is None:
            return  # batches of another history have other numbers
        for snapshot in restored.seal.states.values():
            query, saved = self.state.query(names.get(snapshot.uid, snapshot.uid)), snapshot.query
            if query and saved and (newest := self._newest_batch(query)) > saved.batch:
                yield query, saved, newest

    def _refuse_to_begin_anew(self) -> None:
        """Raise ``NotSupportedYet`` if the point is nothing, and a query of the running driver has committed a batch.

        After a stop the query is left to the driver: perhaps its author has given it another name meanwhile.
        """
        running = self.state.running() if self.restored.point is None else None
        epoch = running.epoch if running else None
        for query in self.state.queries:
            if file_set_epoch(query.newest.path) == epoch and self._newest_batch(query) > NOTHING:
                raise NotSupportedYet(wording.cannot_begin_anew(query.uid, self.state))

    def _refuse_deleted(self, uid: str, saved: QueryDetail) -> None:
        """Raise ``SourceMoved`` if the newest heartbeat proves that Kafka has deleted rows after the checkpoint."""
        found = FoundHistory(self._coordinator.keys, self.state)
        for known in earliest_offsets(self._coordinator.store, found) if saved.kafka_sources else ():
            sources = known.sources.keys() - set(known.loss_allowed) if known.uid == uid else set[str]()
            lost = [
                gap
                for number in sorted(sources & saved.kafka_sources.keys())
                for gap in deleted(saved.kafka_sources[number], known.sources[number])
            ]
            if lost:
                raise SourceMoved(
                    wording.rows_are_deleted(self.state, uid, saved.batch, known.at, lost),
                    checkpoint=saved.batch,
                    gaps=lost,
                )

    def _newest_batch(self, query: QueryRecord) -> int:
        """Return the newest committed batch of a query."""
        return self._location(query).committed()

    def _location(self, query: QueryRecord) -> Location:
        return Location(self._coordinator.store, self._coordinator.keys.file_set(query.newest.path))
