"""Events: the content of the journal, as it is stored. Runs anywhere.

Each event is a dataclass; its JSON is its fields plus ``kind``. ``transitions`` applies an event to the state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_checkpoint_provider.errors import FormatTooNew, shortened
from airflow_checkpoint_provider.protocol.fields import (
    Batch,
    Checkpointing,
    Epochs,
    JobId,
    KindName,
    LocationPath,
    MemorySize,
    Number,
    Outcome,
    Plan,
    PointerText,
    Seconds,
    Size,
    Time,
    TimeOrEmpty,
    Uid,
    Uri,
)
from airflow_checkpoint_provider.protocol.keys import check_savepoint_target
from airflow_checkpoint_provider.protocol.metadata import StateEntry, Versions
from airflow_checkpoint_provider.protocol.records import Record, Shared, added, cut

LONGEST_SHOWN = 80  # characters of an item in the name of an owner
BY_DRIVER = "driver"  # `reported_by` of an end that the driver wrote itself; a release trusts only that


@dataclass(frozen=True, kw_only=True)
class Point(Record):
    """The point from which an attempt starts: a checkpoint of this history by ``id``, or of another history by ``pointer``."""

    id: Number | None = None
    pointer: PointerText | None = None

    def __str__(self) -> str:
        return f"chk-{self.id}" if self.pointer is None else self.pointer


@dataclass(frozen=True, kw_only=True)
class Token(Record):
    """The identity of a request. The generation changes on a clear and not on a retry."""

    dag: str
    run: str
    task: str
    item: str | None = None
    generation: Size = 0

    @property
    def owner(self) -> str:
        """Return who asks, for people: ``load_tables.load[orders]`` for a mapped item. Two tasks may have one text: ``etl.daily.load`` is
        task ``daily.load`` of DAG ``etl``, or task ``load`` of DAG ``etl.daily``.
        """
        item = f"[{shortened(self.item, LONGEST_SHOWN)}]" if self.item else ""
        return f"{self.dag}.{self.task}{item}" if self.dag else self.task

    def same_task(self, other: Token) -> bool:
        """Return whether both are of one task, or of one item of it, in one run."""
        return replace(self, generation=0) == replace(other, generation=0)

    @property
    def text(self) -> str:
        """Return the text under which the state remembers the token."""
        return "|".join((self.dag, self.run, self.task, self.item or "", str(self.generation)))

    def launch_text(self, try_number: int) -> str:
        """Return the text under which the state remembers a launch of the token: it names the try too."""
        return f"{self.text}|{try_number}"


@dataclass(frozen=True, kw_only=True)
class Request(Record):
    """A checkpoint that somebody asks for: a barrier of the driver, a task, a person.

    ``token`` names the request: a retry repeats it. ``try_number`` is 0 in ``airflow tasks test``. ``timeout_s`` is in seconds;
    None means the attempt's own. ``gated``: only a finalize completes it. A savepoint lies in a folder of its own below
    ``folder`` (a URI); ``nonce`` is the last part of that folder's name.
    """

    token: str
    try_number: Size = 1
    kind: KindName = "checkpoint"  # a name in ``kinds.KINDS``
    application: str = ""
    timeout_s: Seconds | None = None
    barrier: str = ""  # where the script was; empty if a task or a person asks
    origin: str = "barrier"
    gated: bool = False
    folder: str | None = None
    nonce: str = ""
    name: str | None = None
    pinned: bool = False
    owner: str = ""  # DAG and task that asks
    # A task waits until every participant was told: the driver writes ``CommitsConfirmed``
    confirm_commits: bool = False


@dataclass(frozen=True, kw_only=True)
class LaunchSpec(Record):
    """A launch that a submit task or a script asks for. ``restore`` is the text that its author wrote."""

    token: Token
    try_number: Size
    owner: str
    run: str
    run_after: str | None
    started_at: Time
    application: str = ""
    restore: str = "latest"
    connection: str = added("")  # of Airflow, through which people find the job
    memory: dict[str, MemorySize] = added(factory=dict)  # conf -> what the launch has; empty without memory_after_oom=
    map_index: Size | None = added(None)  # of the mapped instance; a position, so it may change between two tries


class Event(Shared):
    """Base of the events. Its size is taken before its entry is written, so it is encoded once for both."""

    def members(self) -> dict[str, str]:
        return {**super().members(), "kind": f'"kind":"{kind_of(type(self))}"'}


@dataclass(frozen=True, kw_only=True)
class HistoryOpened(Event):
    """The history of a job, of a run or of an item begins, or a closed one begins again."""

    incarnation: str
    job: JobId
    scope: str  # the run's key, empty in job scope
    item: str | None = None
    by: str = ""


@dataclass(frozen=True, kw_only=True)
class HistoryClosing(Event):
    """Nobody needs the history any more. From now on, only entries that finish the closing, or open it again, are accepted."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class HistoryClosed(Event):
    """The history is closed. A launch may open it again."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class LaunchPlanned(Event):
    """A task is about to submit a driver, which starts from the restore point."""

    launch: Number
    spec: LaunchSpec
    restore_point: Point | None


@dataclass(frozen=True, kw_only=True)
class LaunchAdopted(Event):
    """A later try of the task follows the driver of an earlier one, and submits none."""

    launch: Number
    token: Token
    try_number: Size
    map_index: Size | None = added(None)


@dataclass(frozen=True, kw_only=True)
class StopRequested(Event):
    """A task or a person asks the driver of a launch to end."""

    launch: Number
    by: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class LaunchEnded(Event):
    """The driver of a launch ended before it started an attempt."""

    launch: int
    outcome: Outcome  # finished, failed, lost
    exit_code: int | None
    cause: str = added("")  # of its death, if memory was used up


@dataclass(frozen=True, kw_only=True)
class AttemptStarted(Event):
    """A driver has attached: it is attempt ``epoch`` of the job, and fences the earlier attempts of its application."""

    epoch: Number
    launch: Number
    driver: str  # nonce
    restore_point: Point | None
    application_digest: str
    versions: Versions
    checkpointing: Checkpointing  # in force: retention, timeout
    application_parts: dict[str, str] = added(factory=dict)  # name -> short digest; empty if there are too many


@dataclass(frozen=True, kw_only=True)
class AttemptEnded(Event):
    """An attempt ended. A task may write the ``cause`` of its death later, in a second entry with the same outcome."""

    epoch: Number
    outcome: Outcome
    exit_code: int | None
    reported_by: str
    cause: str = added("")  # of its death, if memory was used up


@dataclass(frozen=True, kw_only=True)
class BranchOpened(Event):
    """A restore: running attempts are over, and the next launch starts from the base."""

    branch: Number
    application: str
    base: Point | None
    token: Token
    by: str
    reason: str
    id_floor: Size = added(0)  # ids go on above that of a base from elsewhere
    claimed: bool = added(False)  # the base is a savepoint that belongs to this history from now on
    rename: dict[str, str] = added(factory=dict)  # uid in the base -> uid from now on
    rewinds: Size = added(0)  # the branch on which streaming queries go back to the base; 0: they go on
    rewind_sink: bool = added(False)  # their sinks may lose rows that were written since


@dataclass(frozen=True, kw_only=True)
class RequestQueued(Event):
    """A request waits until another checkpoint is over."""

    request: Request
    epoch: Number  # of the attempt that would take it


@dataclass(frozen=True, kw_only=True)
class RequestDropped(Event):
    """A queued request will not be served."""

    token: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class QueueDropped(Event):
    """All queued requests of attempts that are over are dropped, or all requests because the job was suspended or told to stop."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class CheckpointTriggered(Event):
    """A checkpoint is pending: the applications of its plan are to acknowledge it."""

    id: Number
    epochs: Epochs
    branch: Size
    plan: Plan
    request: Request
    timeout_s: Seconds  # in force: the request's, or the attempt's
    target: str | None = None  # a savepoint's own folder
    queued_at: TimeOrEmpty = added("")

    def check(self) -> None:
        check_savepoint_target(self.target, self.id, self.request.nonce)


@dataclass(frozen=True, kw_only=True)
class CheckpointCompleted(Event):
    """All applications have acknowledged, and the seal is written: a launch may start from the checkpoint."""

    id: Number
    digest: str
    bytes: Size
    metadata_bytes: Size  # of the seal
    states: tuple[StateEntry, ...]
    subsumed: tuple[Number, ...] = ()
    suspended: str = added("")  # by whom: a stop-savepoint completes and suspends in one entry
    barrier: str = added("")  # where the script was: the request of a task or a person does not know it


@dataclass(frozen=True, kw_only=True)
class CheckpointAborted(Event):
    """The checkpoint will never be completed."""

    id: Number
    reason: str
    phase: str
    missing: tuple[str, ...] = ()
    details: str = ""


@dataclass(frozen=True, kw_only=True)
class CommitsConfirmed(Event):
    """Every participant was told that checkpoint ``id`` is completed. Written if the request asks for it, or sinks have committed."""

    id: Number


@dataclass(frozen=True, kw_only=True)
class SavepointPublished(Event):
    """A savepoint lies whole in its own folder."""

    id: Number


@dataclass(frozen=True, kw_only=True)
class CheckpointsCondemned(Event):
    """No policy keeps these checkpoints. Nobody may restore from them, and their files are about to be deleted."""

    ids: tuple[Number, ...]
    claims: tuple[str, ...] = added(factory=tuple)  # pointers of claimed savepoints


@dataclass(frozen=True, kw_only=True)
class CheckpointsForgotten(Event):
    """The files of these checkpoints are deleted."""

    ids: tuple[Number, ...]
    claims: tuple[str, ...] = added(factory=tuple)


@dataclass(frozen=True, kw_only=True)
class GoneBack(Record):
    """A streaming query went back to ``batch`` of a checkpoint. No number of a batch is used twice, so that batch has another one
    from now on.

    ``newest_file``: the newest file that ``sink`` keeps, None for none. ``sink`` is the path or the table of a sink that counts batches,
    None for another kind.
    """

    batch: Batch
    sink: str | None = None
    newest_file: str | None = None


@dataclass(frozen=True, kw_only=True)
class QueryLocated(Event):
    """The streaming query ``uid`` runs in the location ``path`` from now on. ``taken_from`` was its newest one, and is fenced; None: there
    was none. ``begun`` and ``committed`` are the newest batches in the new one, which is a copy of ``taken_from``, unless the query went
    back to a checkpoint. ``adopted`` is the URI of a location from which it was copied: of a query that ran without this package. ``sink``
    is the path or the table of a sink that counts batches, None for another kind; ``format`` is Spark's name of its format. ``after`` are
    the queries whose rows it reads. ``rewound`` is the newest branch on which it went back. ``further`` is the launch whose driver has
    committed batches in ``taken_from`` since it began there, 0 for none.
    """

    uid: str
    path: LocationPath
    taken_from: LocationPath | None
    begun: Batch
    committed: Batch
    gone_back: GoneBack | None = added(None)
    adopted: Uri | None = added(None)
    sink: str | None = added(None)
    format: str | None = added(None)
    after: tuple[Uid, ...] = added(())
    rewound: Size = added(0)
    further: Size = added(0)


@dataclass(frozen=True, kw_only=True)
class QuerySettled(Event):
    """The newest location of a query needs no older one any more."""

    uid: str
    path: LocationPath


@dataclass(frozen=True, kw_only=True)
class QueryReleased(Event):
    """The streaming query ``uid`` goes on without this package, in the location at the URI ``to``. That is a copy of ``path``, its newest
    location, which is fenced. If ``path`` is None, it is a copy of the location from which the query was to be adopted. ``begun`` and
    ``committed`` are the newest batches there.
    """

    uid: Uid
    path: LocationPath | None
    to: Uri
    begun: Batch
    committed: Batch


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """A suspended job may be started again."""

    by: str
    reason: str


def kind_of(event: type[Event]) -> str:
    """Return the kind of an event in the journal: ``checkpoint_triggered`` for ``CheckpointTriggered``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()


KINDS: dict[str, type[Event]] = {kind_of(event): event for event in Event.__subclasses__()}


def event_from_json(data: Mapping[str, Any]) -> Event:
    """Return the event in ``data``. Raises ``FormatTooNew`` for an unknown kind: an event is never skipped."""
    kind = data.get("kind")
    if kind not in KINDS:
        raise FormatTooNew(
            f"the journal holds an event {cut(str(kind))!r} that this version does not know: upgrade airflow-checkpoint-provider here"
        )
    return KINDS[kind].from_json({name: value for name, value in data.items() if name != "kind"})
