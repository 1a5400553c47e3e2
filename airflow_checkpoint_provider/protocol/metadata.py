"""The content of a checkpoint: acknowledgement and seal, format version 1. Runs anywhere.

An acknowledgement names every state of one application; the seal (``_metadata``) is built from the trigger's entry and the
acknowledgements alone, so every coordinator builds the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from airflow_checkpoint_provider.protocol.fields import (
    Batch,
    Epochs,
    FileSetPath,
    JobId,
    KindName,
    Number,
    Plan,
    Seconds,
    Size,
    Uid,
)
from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.protocol.part_records import PartsDetail, PartsProgress
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.protocol.records import (
    DEEPEST,
    VERSION,
    Check,
    Record,
    Shared,
    added,
    canonical,
    checked,
    known_kind,
)
from airflow_checkpoint_provider.protocol.transactions import SinkDetail

STAGE, VALUE, REGISTERED, QUERY, SINK = "stage", "value", "registered", "query", "sink"
"""The kinds of states: rows, small JSON, and the states of registered objects, of streaming queries and of the script's sinks."""
FILES = "files"
"""The kind of files that the script keeps."""
LOOP, ONCE, FRAME, KEYED = "loop", "once", "frame", "keyed"
"""The kinds of loops whose turns a run does once, of loops whose items a history does once, and of DataFrames and tables by key that they
change."""
PARTS = "parts"
"""The kind of a stage whose rows are computed part by part. It is whole when all of its parts are stored."""
ROWS = (STAGE, PARTS)
OF_RUN = (STAGE, PARTS, FILES, LOOP)
"""The kinds that belong to a run: another run of the history does not see them."""
INLINE = (VALUE, REGISTERED, LOOP, ONCE)
"""The kinds whose content lies in the metadata itself."""


StateKind = Annotated[
    str,
    Check(
        known_kind("a stored state", (STAGE, VALUE, REGISTERED, QUERY, SINK, FILES, LOOP, ONCE, FRAME, KEYED, PARTS)),
        "kind of a state",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Measures(Record):
    """Barrier of a state's snapshot, the first checkpoint that held it, and seconds of the work and its synchronous part.

    For a query that reads the rows of others: the seconds until a common cut was found, and the bytes in flight to the query there.
    """

    checkpoint: Size = 0
    barrier: str = ""
    work_s: Seconds = 0.0
    sync_s: Seconds = 0.0
    new_bytes: Size = 0
    alignment_s: Seconds = added(0.0)
    in_flight_bytes: Size = added(0)


@dataclass(frozen=True, kw_only=True)
class Metrics(Record):
    """The metrics that ``df.observe`` collected while a stage was computed: their type and their row as Spark's JSON, the row by position.

    Metrics that could not be kept have no row.
    """

    name: str  # of the Observation; empty if Spark drew it
    schema: str = ""
    row: str | None = None


@dataclass(frozen=True, kw_only=True)
class Provenance(Record):
    """What a state of a run was made from, as far as it decides whether a retry may reuse it."""

    application: str
    version: str | None = None
    # digest of the file sets of all stages handed out earlier in its attempt
    earlier_stages: str = ""
    # uid of the last of them
    stage_before: str | None = None
    values: dict[str, Any] = field(default_factory=dict)  # uid -> JSON, at its barrier
    generation: Size = added(0)  # of the task: a clear changes it


@dataclass(frozen=True, kw_only=True)
class StageDetail(Provenance):
    """The values that decide whether a stage may be reused, and how its rows are read back."""

    plan: str
    inputs: str  # a digest of the inputs of the plan's leaves: paths, options, rows of the driver, file sets of stages
    python: bool
    schema: str  # Spark's JSON
    codec: str  # for people who read `_metadata`
    sorted: bool = False
    function: bool = False
    draws: tuple[int, ...] = added(
        factory=tuple
    )  # the seeds by which Spark has drawn values, in the order in which the plan names them
    partitions: dict[str, str] = added(factory=dict)  # the settings of the partitions, if the rows depend on them
    listed: str = added(
        ""
    )  # a digest of the inputs that Spark had listed by itself: names, sizes and times of files, versions of tables
    reads: str = added("")  # the names of these inputs, and of those that Spark had not listed, for one line
    metrics: tuple[Metrics, ...] = added(factory=tuple)


@dataclass(frozen=True, kw_only=True)
class FilesDetail(Provenance):
    """Files that the script keeps. ``local``: it uses them in a folder on the driver's disk."""

    local: bool


@dataclass(frozen=True, kw_only=True)
class LoopDetail(Provenance):
    """What the finished turns of a loop have left in this run. A retry begins with it at the first turn that is not finished.

    ``path`` is new at each barrier of the loop, and names no files: what the script builds after the turns is built on it. ``values`` of
    the loop are those at its barrier, ``own_values`` the uids of those that its turns have set, ``opened`` the uids of what the script has
    opened inside of a turn. Of a loop over the items of a history, ``began`` is the number of those that earlier runs have done.
    ``broken_off`` is a loop before it that the script has left by ``break`` after changes that no barrier has stored. ``reopened`` are the
    items of a history that this run had done, whose turns count no longer, and that it has not done again. ``used`` are the uids of what the
    application of the newest turn had opened at its end, in this run, inside or outside of turns.
    """

    path: FileSetPath
    turns: Size = 0
    items: str = ""  # eight hex digits of the digest of each finished turn's item; empty for the items of a history
    began: Size = 0
    frames: dict[str, FileSetPath] = field(default_factory=dict)  # uid -> its rows, by the identity of their file set
    writes: dict[str, Size] = field(default_factory=dict)  # uid of a sink -> the writes of the run to it
    writes_before: dict[str, Size] = field(default_factory=dict)  # the same before the first turn
    own_values: tuple[str, ...] = ()
    opened: tuple[Uid, ...] = added(factory=tuple)
    broken_off: Uid | None = added()
    reopened: tuple[Any, ...] = added(factory=tuple)  # JSON
    used: tuple[Uid, ...] = added(factory=tuple)


@dataclass(frozen=True, kw_only=True)
class FrameDetail(Record):
    """The rows of a frame at several points of a run, one file set each, the newest last.

    ``schemas`` has the schema of each as Spark's JSON. ``began`` is the identity of the file set with which the run began.
    """

    schemas: tuple[str, ...]
    codec: str  # for people who read `_metadata`
    began: FileSetPath | None = None


@dataclass(frozen=True, kw_only=True)
class KeyedDetail(Record):
    """A table by key. Its file sets are those of a frame, and each has all rows, or the changes of another one.

    ``on`` leads from a file set with changes to the one that they change. ``key`` are the columns of the key, ``max_parallelism`` is the
    number of key groups.
    """

    key: tuple[str, ...]
    max_parallelism: Number
    on: dict[str, FileSetPath] = field(default_factory=dict)


def chain(on: Mapping[str, str], identity: str) -> list[str]:
    """Return the file sets that rows consist of, by their identity: the one with all rows first, then those with the changes."""
    found = [identity]
    while (before := on.get(found[0])) and before not in found:
        found.insert(0, before)
    return found


def digest_of_stages(file_sets: Iterable[str]) -> str:
    """Return a digest that is equal for stages with the same file sets, in any order and with any names; empty for none."""
    named = sorted(file_sets)
    return digest(canonical(named)) if named else ""


def kind_in_words(kind: str) -> str:
    """Return a kind of state as messages call it."""
    words = {
        REGISTERED: "registered object",
        FILES: "folder",
        ONCE: "lasting loop",
        KEYED: "keyed state",
        PARTS: "stage in parts",
    }
    return words.get(kind, kind)


@dataclass(frozen=True, kw_only=True)
class SinkVersion(Record):
    """The newest transaction of a sink in a checkpoint, and the number of those that it holds."""

    version: Size
    target: str = ""
    gated: bool = False
    transactions: Size = 0


@dataclass(frozen=True, kw_only=True)
class StateEntry(Shared):
    """One state of a completed checkpoint in the journal: enough for retention, progress and the summary."""

    uid: Uid
    kind: str
    run: str
    file_sets: tuple[FileSetPath, ...] = ()  # paths
    bytes: Size = 0
    rows: Size = 0
    new: bool = False  # snapshotted for this checkpoint, not handed on
    unused: bool = added(False)  # a stage that the script had not used when the checkpoint was acknowledged
    measures: Measures = field(default_factory=Measures)
    batch: Batch | None = added()  # the newest committed one of a streaming query
    # of a streaming query: number of a source that reads Kafka -> the offsets at which it reads on
    sources: dict[str, str] = added(factory=dict)
    sink: SinkVersion | None = added()
    parts: PartsProgress | None = added()

    @functools.cached_property
    def listed(self) -> StateEntry:
        """Return the entry without its file sets: those of a checkpoint are listed by number."""
        return replace(self, file_sets=())


@dataclass(frozen=True, kw_only=True)
class StateSnapshot(Shared):
    """One state in one checkpoint: rows in file sets (oldest first), or a small value inline."""

    deepest: ClassVar[int] = DEEPEST - 4  # it lies in the list of an acknowledgement, which lies in a seal
    uid: Uid
    kind: StateKind
    run: str
    file_sets: tuple[FileSet, ...] = ()
    value: Any = None
    measures: Measures = field(default_factory=Measures)
    stage: StageDetail | None = None
    query: QueryDetail | None = added()
    sink: SinkDetail | None = added()
    files: FilesDetail | None = added()
    loop: LoopDetail | None = added()
    frame: FrameDetail | None = added()
    keyed: KeyedDetail | None = added()
    parts: PartsDetail | None = added()

    def check(self) -> None:
        if (self.kind == SINK) != (self.sink is not None):
            raise ValueError(f"{self.uid!r} is not a sink, or has no detail of it")
        if (self.kind == FILES) != (self.files is not None):
            raise ValueError(f"{self.uid!r} is not a folder, or has no detail of it")
        if (self.kind in (LOOP, ONCE)) != (self.loop is not None):
            raise ValueError(f"{self.uid!r} is not a loop, or has no detail of it")
        if (self.kind in (FRAME, KEYED)) != (self.frame is not None):
            raise ValueError(f"{self.uid!r} is not a frame, or has no detail of it")
        if (self.kind == KEYED) != (self.keyed is not None):
            raise ValueError(f"{self.uid!r} is not a keyed state, or has no detail of it")
        if self.frame and len(self.frame.schemas) != len(self.file_sets):
            raise ValueError(f"{self.uid!r} has {len(self.file_sets)} file sets and {len(self.frame.schemas)} schemas")
        if (self.kind == PARTS) != (self.parts is not None):
            raise ValueError(f"{self.uid!r} is not a stage in parts, or has no detail of it")
        if self.parts and not (self.stage and len(self.file_sets) == len(self.parts.done) <= len(self.parts.values)):
            raise ValueError(f"{self.uid!r} has not one file set for each of its stored parts")
        if self.kind in (STAGE, PARTS, FILES, FRAME, KEYED) and not self.file_sets:
            raise ValueError(f"{self.uid!r} is not a {kind_in_words(self.kind)}, because it has no file set")
        if self.kind not in (QUERY, FILES) and (hidden := self._hidden_from_spark()):
            raise ValueError(f"{hidden!r} of a {kind_in_words(self.kind)} is not a name that Spark reads")

    def _hidden_from_spark(self) -> str | None:
        names = (file.name for file_set in self.file_sets for file in file_set.files)
        return next((name for name in names if name.startswith("_") or "/_" in name), None)

    @property
    def provenance(self) -> Provenance | None:
        """Return what it was made from, if it belongs to a run."""
        return self.stage or self.files or self.loop

    @property
    def identity(self) -> str:
        """Return by what it is told from an earlier state of that name, if it belongs to a run: the identity of its rows, the newest of several
        parts, or of its turns.
        """
        return self.loop.path if self.loop else self.file_sets[-1].identity

    @property
    def bytes(self) -> int:
        return sum(file_set.bytes for file_set in self.file_sets)

    @property
    def rows(self) -> int:
        """Return the number of rows; of a frame the newest ones."""
        return sum(file_set.rows for file_set in (self.file_sets[-1:] if self.frame else self.file_sets))

    @functools.cached_property
    def entry(self) -> StateEntry:
        """Return its entry for the journal, as that of a state which is not new."""
        return StateEntry(
            uid=self.uid,
            kind=self.kind,
            run=self.run,
            file_sets=tuple(file_set.path for file_set in self.file_sets),
            bytes=self.bytes,
            rows=self.rows,
            measures=self.measures,
            batch=self.query.batch if self.query else None,
            sources=self.query.kafka_sources if self.query else {},
            sink=sink_version(self.sink) if self.sink else None,
            parts=self.parts.progress if self.parts else None,
        )


def sink_version(sink: SinkDetail) -> SinkVersion:
    """Return what the journal says of a sink in a completed checkpoint."""
    return SinkVersion(version=sink.version, target=sink.target, gated=sink.gated, transactions=len(sink.transactions))


@dataclass(frozen=True, kw_only=True)
class Versions(Record):
    """The releases with which a driver ran."""

    package: str = ""  # for people who read `_metadata`
    spark: str = ""


@dataclass(frozen=True, kw_only=True)
class Acknowledgement(Record):
    """All states of one application at one barrier, written by the attempt ``epoch``. ``nonce`` distinguishes two writers."""

    deepest: ClassVar[int] = DEEPEST - 2  # it lies in a seal
    inc: str
    id: Number
    application: str
    epoch: Number
    nonce: str
    run: str
    states: tuple[StateSnapshot, ...]
    run_values: dict[str, Any] = field(default_factory=dict)  # the values with which the run began
    run_objects: tuple[str, ...] = added(factory=tuple)  # uids of the registered objects' states with which it began
    unused: tuple[Uid, ...] = added(factory=tuple)  # stages that the script had not used yet
    barrier: str = added("")  # where the script was
    versions: Versions = field(default_factory=Versions)
    v: int = VERSION

    def to_bytes(self) -> bytes:
        return checked(self)


@dataclass(frozen=True, kw_only=True)
class Seal(Record):
    """The content of ``_metadata``: a whole checkpoint. ``applications`` holds the acknowledgements by application."""

    inc: str
    job: JobId
    scope: str  # the run's key, empty in job scope
    item: str | None
    id: Number
    kind: KindName
    branch: Size
    epochs: Epochs
    plan: Plan
    applications: dict[str, Acknowledgement]
    v: int = VERSION

    @property
    def states(self) -> dict[str, StateSnapshot]:
        """Return all states by uid."""
        return {state.uid: state for ack in self.applications.values() for state in ack.states}

    @property
    def barrier(self) -> str:
        """Return where the script was; empty if no acknowledgement says it."""
        return next((ack.barrier for ack in self.applications.values() if ack.barrier), "")

    def to_bytes(self) -> bytes:
        return checked(self)


def digest(body: bytes) -> str:
    """Return the SHA-256 of ``body`` in hex. The *completed* entry holds that of the seal."""
    return hashlib.sha256(body).hexdigest()
