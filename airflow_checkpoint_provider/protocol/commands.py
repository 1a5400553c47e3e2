"""Commands of the state machine. Runs anywhere.

A command is a value: the wish of its sender and the sender's observations, such as whether a driver is alive.
``decide`` in ``decisions`` turns it into events, into *done already*, or into a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_checkpoint_provider.errors import InvalidConfig, Refused
from airflow_checkpoint_provider.protocol.events import BY_DRIVER, Event, GoneBack, LaunchSpec, Point, Request, Token
from airflow_checkpoint_provider.protocol.fields import OUTCOMES
from airflow_checkpoint_provider.protocol.kinds import ACKNOWLEDGE
from airflow_checkpoint_provider.protocol.metadata import StateEntry, Versions


@dataclass(frozen=True)
class DoneAlready:
    """The answer that the wish is already fulfilled. ``number`` is the launch, epoch or checkpoint that fulfilled it."""

    number: int


@dataclass(frozen=True)
class Refusal:
    """The answer that a command is refused. ``error`` is raised by its sender."""

    error: Refused


Decision = tuple[Event, ...] | DoneAlready | Refusal


def _check_outcome(outcome: str) -> None:
    if outcome not in OUTCOMES:
        raise InvalidConfig(f"outcome={outcome!r}: write one of {', '.join(map(repr, OUTCOMES))}")


class Command:
    """Base of the commands."""


@dataclass(frozen=True, kw_only=True)
class OtherIndex:
    """The map index from which an item's newest launch in a run came, as another instance of the task sees it.

    ``holds``: that index has the item still, so two instances have one item. ``cleared``: a person cleared it since that launch.
    """

    index: int
    holds: bool
    cleared: bool = False


@dataclass(frozen=True, kw_only=True)
class PlanLaunch(Command):
    """The command to start an attempt of a run, from a submit task or from a script without Airflow.

    ``base`` is the point that ``spec.restore`` names, None for "latest" and "none"; ``id_floor`` is the id of a base
    from another history. ``incarnation`` names the history if this is its first entry. ``alone`` marks a script:
    beside a living process it is refused; it neither adopts nor fences it. ``other``: the item's newest launch came from another index.
    """

    spec: LaunchSpec
    incarnation: str
    job: str
    scope: str = ""
    item: str | None = None
    base: Point | None = None
    id_floor: int = 0
    on_clear: str = "auto"
    require_state: bool = False
    seen_alive: bool = False
    durable: bool = True
    alone: bool = False
    other: OtherIndex | None = None


@dataclass(frozen=True, kw_only=True)
class StartAttempt(Command):
    """The command of a driver to take its epoch, abort pending checkpoints and fix its restore point, all in one entry."""

    token: Token
    try_number: int
    driver: str
    seen_alive: bool = False
    application: str = ""
    application_digest: str = ""
    application_parts: dict[str, str] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    checkpointing: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StartAlone(Command):
    """The command of a driver without Airflow: launch and attempt in one entry."""

    plan: PlanLaunch
    start: StartAttempt


@dataclass(frozen=True, kw_only=True)
class RequestStop(Command):
    """Ask the driver of a launch to end."""

    launch: int
    try_number: int
    by: str
    reason: str
    map_index: int | None = None


@dataclass(frozen=True, kw_only=True)
class EndLaunch(Command):
    """The command of a task to record how a driver ended that never attached. ``outcome``: "finished" if its script ended well
    and opened no ``CheckpointedJob``, "failed", or "lost".
    """

    launch: int
    try_number: int
    outcome: str
    exit_code: int | None = None
    cause: str = ""
    map_index: int | None = None

    def __post_init__(self) -> None:
        _check_outcome(self.outcome)


@dataclass(frozen=True, kw_only=True)
class EndAttempt(Command):
    """The command to end an attempt. ``from_task``: the task saw the exit code; only it may turn *finished* into
    *failed*, and add the ``cause`` of a death that its driver could not see.
    """

    epoch: int
    outcome: str
    exit_code: int | None = None
    reported_by: str = BY_DRIVER
    from_task: bool = False
    cause: str = ""

    def __post_init__(self) -> None:
        _check_outcome(self.outcome)


@dataclass(frozen=True, kw_only=True)
class Trigger(Command):
    """The command to request a checkpoint. ``epoch`` is the driver's own, None from anyone else.

    ``run``: a task asks for its own DAG run; after that run has finished, the command is refused. ``pause_left_s``: seconds that
    remain of the pause between two periodic checkpoints, as the driver's timer measured them.
    """

    request: Request
    epoch: int | None = None
    run: str | None = None
    pause_left_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Complete(Command):
    """The command to complete a checkpoint. ``digest`` and ``metadata_bytes`` are those of the seal as it was read back.

    ``acknowledged`` are the applications whose acknowledgements the seal holds, ``barrier`` is where the script was. ``finalize``: the
    sender may complete a gated checkpoint.
    """

    id: int
    digest: str
    bytes: int
    metadata_bytes: int
    states: tuple[StateEntry, ...]
    acknowledged: tuple[str, ...]
    barrier: str = ""
    epoch: int | None = None
    finalize: bool = False


@dataclass(frozen=True, kw_only=True)
class ConfirmCommits(Command):
    """The command to record that the driver of attempt ``epoch`` has notified every participant of checkpoint ``id``."""

    id: int
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class ConfirmPublished(Command):
    """The command to record that a savepoint's ``_metadata`` lies at its target."""

    id: int


@dataclass(frozen=True, kw_only=True)
class Abort(Command):
    """Abort a pending checkpoint."""

    id: int
    reason: str
    phase: str = ACKNOWLEDGE
    missing: tuple[str, ...] = ()
    details: str = ""
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class LocateQuery(Command):
    """The command of a driver to run a query in the location ``path``, which nobody uses yet. The driver copied it from
    ``taken_from``; if the query has ``gone_back``, from a checkpoint.
    """

    uid: str
    path: str
    taken_from: str | None
    begun: int
    committed: int
    epoch: int
    gone_back: GoneBack | None = None
    adopted: str | None = None
    sink: str | None = None
    format: str | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SettleQuery(Command):
    """The command of a driver to give up the older locations of a query: its own holds everything that they held."""

    uid: str
    path: str
    epoch: int


@dataclass(frozen=True, kw_only=True)
class ReleaseQuery(Command):
    """The command to let a query go on without this package, in the location at the URI ``to``. Its sender has fenced ``path``, its newest
    location, and copied it there; None: the query has none yet.
    """

    uid: str
    path: str | None
    to: str
    begun: int
    committed: int


@dataclass(frozen=True, kw_only=True)
class Restore(Command):
    """The command to go back: running attempts are fenced, and the next attempt starts from ``base``, a verified checkpoint or None.

    For a base from another history, ``id_floor`` is its id, and ``claimed`` says that it is a savepoint whose lock this history holds.
    ``rewind_queries``: streaming queries go back to the base too. ``rewind_sink``: their sinks may lose rows that were written since.
    """

    token: Token
    base: Point | None
    by: str
    reason: str
    application: str = ""
    id_floor: int = 0
    claimed: bool = False
    rename: dict[str, str] = field(default_factory=dict)
    rewind_queries: bool = False
    rewind_sink: bool = False


@dataclass(frozen=True, kw_only=True)
class Condemn(Command):
    """The command to mark checkpoints for deletion. ``now`` (ISO, UTC) serves only policies that depend on age.

    ``claims`` are pointers of claimed savepoints. ``disposing``: the owner of the savepoints among ``ids`` sends it;
    otherwise they are kept.
    """

    ids: tuple[int, ...]
    now: str
    epoch: int | None = None
    claims: tuple[str, ...] = ()
    disposing: bool = False


@dataclass(frozen=True, kw_only=True)
class Forget(Command):
    """Drop condemned checkpoints from the state, because their files are deleted."""

    ids: tuple[int, ...]
    epoch: int | None = None
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CloseHistory(Command):
    """The command to close a history. ``now`` as in ``Condemn``."""

    reason: str
    now: str


@dataclass(frozen=True, kw_only=True)
class FinishClosing(Command):
    """The command to finish closing. Anyone may send it."""
