"""Release a query: it continues under Spark alone, in a folder of its own. Runs anywhere.

A release takes the same steps as a take-over by a new attempt. If it was killed after step 2, repeat it with the same folder: it resumes.
If it was killed before, the folder may hold a part of the copy, and is refused then: repeat it with a new folder. At worst, an unused copy
stays behind.

1. The newest location here is fenced, and copied into the folder, with the batch that had begun.
2. An entry of the journal names the folder: from now on an attempt starts the query only with ``adopt=``.
3. An older driver that still ran may have finished that batch in the sink. Then its state is fetched.

If a query was adopted and has no location here yet, the adopted location is copied. Its fence is never deleted.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.liveness import Liveness
from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged, JobAlreadyRunning, Refused, StoreDenied
from airflow_checkpoint_provider.location.copying import chain_at, copy_position, fetch_state
from airflow_checkpoint_provider.location.fence import FenceEntry, fence, fence_entry_of, reached
from airflow_checkpoint_provider.location.files import Location, Position, location_at
from airflow_checkpoint_provider.location.take_over import take_over
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import BY_DRIVER
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.query_records import QueryRecord, Released
from airflow_checkpoint_provider.protocol.state import State


@dataclass(frozen=True)
class ReleasePlan:
    """A query that is to go on in ``to``: a copy of the newest of ``chain``, at ``position``. ``done``: the journal says so already."""

    uid: str
    to: Location
    chain: tuple[Location, ...]
    position: Position
    path: str | None
    done: bool = False


class Release:
    """The release of the query ``uid`` into the folder ``to``, a path or URI.

    ``coordinator`` is that of its history. ``adopted`` is the location that ``adopt=`` named. It is needed if the query has no location
    here yet, or if its location here still needs files of the adopted one.
    """

    def __init__(self, coordinator: Coordinator, uid: str, to: str, adopted: str | None = None) -> None:
        self._coordinator, self._uid = coordinator, uid
        self._liveness = Liveness(coordinator.store)  # its observations shorten the next ones
        self._to = location_at(coordinator.store, to)
        self._adopted = location_at(coordinator.store, adopted) if adopted else None

    def plan(self) -> ReleasePlan:
        """Return the plan of the release. Changes nothing.

        Raises ``CheckpointNotFound``, ``Refused``, ``NotNamed``, ``Damaged``, and ``JobAlreadyRunning``.
        """
        state = self._coordinator.journal.catch_up()
        plan = self._released(state) or self._here(state) or self._fenced_elsewhere(state)
        self._coordinator.journal.foresee(_command(plan))
        if not plan.done:
            refuse_living(self._coordinator, self._liveness, f"query '{self._uid}' was not released")
            if plan.to.sizes():
                raise Refused(f"{plan.to.uri} is not empty. Name a new folder; nothing was changed")
        return plan

    def run(self, by: str) -> ReleasePlan:
        """Release the query. Raises what ``plan`` raises, ``QueryMoved`` and ``StoreError``."""
        plan = self.plan()
        if not plan.done:
            entry = FenceEntry(self._coordinator.state.incarnation, plan.uid, secrets.token_hex(16), by)
            old = plan.chain[0]
            plan = take_over(old, plan.to, lambda: (fence(old, entry, lambda: None), time.monotonic()), self._copy)
            self._coordinator.journal.append(_command(plan))
        fetch_state(plan.to, plan.chain, plan.position)
        return plan

    def _released(self, state: State) -> ReleasePlan | None:
        """Return a query that was released to this folder before. Raises ``Refused`` if it was released to another one."""
        released = None if state.query(self._uid) else state.released_query(self._uid)
        if released is None:
            return None
        if released.to != self._to.uri:
            raise Refused(
                f"query '{self._uid}' was released to {released.to}, and continues there. Nothing was changed"
            )
        chain = self._chain(released)
        return ReleasePlan(released.uid, self._to, chain, Position(released.begun, released.committed), None, done=True)

    def _here(self, state: State) -> ReleasePlan | None:
        """Return a query that has a location here. Raises ``Damaged`` if batches are missing there."""
        query = state.query(self._uid)
        if query is None:
            return None
        chain = self._chain(query)
        position = reached(chain[0])
        if position.begun < query.newest.begun or position.committed < query.newest.committed:
            raise Damaged(
                f"query '{query.uid}': its location {chain[0].uri} lacks batches that were there; somebody or something deleted files."
                " Start the old script with a copy of a savepoint"
            )
        if query.newest.gone_back and position.committed == query.newest.committed:  # only the driver reaches the sink
            raise Refused(
                f"query '{query.uid}' goes back, and nobody knows whether its sink has done so. Start the job once, then release the query"
            )
        return ReleasePlan(query.uid, self._to, chain, position, query.newest.path)

    def _fenced_elsewhere(self, state: State) -> ReleasePlan:
        """Return a query whose adopted location was fenced, and that has not started here."""
        if self._adopted is None:
            raise CheckpointNotFound(
                f"query '{self._uid}' has no location in the history of {state.job or 'this job'}. If adopt= has fenced its old one, name"
                " that with --adopted"
            )
        entry = fence_entry_of(self._adopted)
        if entry is None or (entry.incarnation, entry.uid) != (state.incarnation, self._uid):
            by = f"fenced by {entry.by} for query '{entry.uid}'" if entry else "not fenced: the query can run there"
            raise Refused(f"{self._adopted.uri} is {by}. Nothing was changed")
        return ReleasePlan(self._uid, self._to, (self._adopted,), reached(self._adopted), None)

    def _copy(self, position: Position) -> ReleasePlan:
        """Copy the files with which the query goes on. Return the plan again: a batch may have begun since the first one."""
        plan = self.plan()
        copy_position(plan.chain, position, plan.to)
        return replace(plan, position=position)

    def _chain(self, query: QueryRecord | Released) -> tuple[Location, ...]:
        return chain_at(
            self._coordinator.store, self._coordinator.keys, query, self._adopted.uri if self._adopted else None
        )


def refuse_living(coordinator: Coordinator, liveness: Liveness, undone: str) -> None:
    """Raise ``JobAlreadyRunning``, which says what was ``undone``, if a driver of an attempt that is over may still write a batch."""
    state = coordinator.state
    drivers: dict[tuple[str, ...], AttemptRecord] = {
        (coordinator.keys.attempt_beat(attempt.epoch),): attempt for attempt in _not_heard_of(state)
    }
    for keys, alive in liveness.wait_for_each(drivers).items():
        if isinstance(alive, StoreDenied):
            raise alive
        if alive:
            raise JobAlreadyRunning(
                f"the driver of attempt {drivers[keys].epoch} of {state.job} still lives; {undone}. Wait until it has ended, or end it"
            )


def _not_heard_of(state: State) -> Iterator[AttemptRecord]:
    """Yield the attempts that are over, and whose drivers did not say so themselves."""
    return (attempt for attempt in state.attempts if not attempt.ending or attempt.ending.reported_by != BY_DRIVER)


def _command(plan: ReleasePlan) -> c.ReleaseQuery:
    begun, committed = plan.position.begun, plan.position.committed
    return c.ReleaseQuery(uid=plan.uid, path=plan.path, to=plan.to.uri, begun=begun, committed=committed)
