"""What anyone can ask of the state machine. Runs anywhere.

A command is a value: what its sender wants and what it observed. ``decide`` in ``decisions`` turns it into events, into
*done already*, or into a refusal. Whether a driver is alive is an observation, a value like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_checkpoint_provider.errors import Refused
from airflow_checkpoint_provider.protocol.events import Event, LaunchSpec, Point, Request, StateEntry, Token
from airflow_checkpoint_provider.protocol.metadata import Versions


@dataclass(frozen=True)
class DoneAlready:
    """What was wanted is already so; ``number`` is the launch, epoch or checkpoint that says so."""

    number: int


@dataclass(frozen=True)
class Refusal:
    """Why not, as the error that the sender raises."""

    error: Refused


Decision = tuple[Event, ...] | DoneAlready | Refusal


class Command:
    """Base of the commands."""


@dataclass(frozen=True, kw_only=True)
class PlanLaunch(Command):
    """A submit task, or a script without Airflow, wants an attempt of its run to start.

    ``base`` is the point that ``spec.restore`` was resolved to, None for "latest" and "none"; ``above`` the id of a base from
    elsewhere. ``incarnation`` names the history if this is its first entry. ``alone`` marks a script: it refuses beside a
    living process instead of adopting or fencing it.
    """

    spec: LaunchSpec
    incarnation: str
    job: str
    scope: str = ""
    item: str | None = None
    base: Point | None = None
    above: int = 0
    on_clear: str = "auto"
    require_state: bool = False
    seen_alive: bool = False
    durable: bool = True
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class StartAttempt(Command):
    """A driver takes its epoch, settles what is pending, and fixes where it starts, all in one entry."""

    token: Token
    try_number: int
    driver: str
    seen_alive: bool = False
    application: str = ""
    application_digest: str = ""
    versions: Versions = field(default_factory=Versions)
    checkpointing: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StartAlone(Command):
    """Both in one entry: a driver without Airflow."""

    plan: PlanLaunch
    start: StartAttempt


@dataclass(frozen=True, kw_only=True)
class RequestStop(Command):
    launch: int
    try_number: int
    by: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class EndAttempt(Command):
    """``from_task``: the task saw the exit code; it alone may turn *finished* into *failed*."""

    epoch: int
    how: str
    exit_code: int | None = None
    said_by: str = "driver"
    from_task: bool = False


@dataclass(frozen=True, kw_only=True)
class Trigger(Command):
    """Ask for a checkpoint. ``epoch`` is the driver's own, None from anyone else.

    ``run``: a task asks for its own DAG run; after that run has finished, the command is refused. ``pause_left_s``: seconds that
    remain of the pause between two periodic checkpoints, as the driver's timer measured them.
    """

    request: Request
    epoch: int | None = None
    run: str | None = None
    pause_left_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Complete(Command):
    """``digest`` is of the seal as it was read back; ``acknowledged`` are the applications whose words it holds.

    ``finalize``: by who may complete a gated one.
    """

    id: int
    digest: str
    bytes: int
    states: tuple[StateEntry, ...]
    acknowledged: tuple[str, ...]
    epoch: int | None = None
    finalize: bool = False


@dataclass(frozen=True, kw_only=True)
class ConfirmCommits(Command):
    """The driver of attempt ``epoch`` has told every participant that checkpoint ``id`` is completed."""

    id: int
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class ConfirmPublished(Command):
    """By who put a savepoint's ``_metadata`` at its target, or found it there."""

    id: int


@dataclass(frozen=True, kw_only=True)
class Abort(Command):
    id: int
    reason: str
    phase: str = "acknowledge"
    missing: tuple[str, ...] = ()
    words: str = ""
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Restore(Command):
    """Whatever runs is fenced, and the next attempt starts from ``base``: a checkpoint that was verified, or nothing.

    Of a base from elsewhere: ``above`` is its id, ``claimed`` that it is a savepoint whose lock this history holds.
    """

    token: Token
    base: Point | None
    by: str
    reason: str
    application: str = ""
    above: int = 0
    claimed: bool = False
    rename: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Condemn(Command):
    """``now`` (ISO, UTC) is for policies that speak of age, nothing else. ``claims`` are pointers of claimed savepoints.

    ``disposing``: by the owner of the savepoints among ``ids``; else they are held.
    """

    ids: tuple[int, ...]
    now: str
    epoch: int | None = None
    claims: tuple[str, ...] = ()
    disposing: bool = False


@dataclass(frozen=True, kw_only=True)
class Forget(Command):
    ids: tuple[int, ...]
    epoch: int | None = None
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CloseHistory(Command):
    """``now`` as in ``Condemn``."""

    why: str
    now: str


@dataclass(frozen=True, kw_only=True)
class FinishClosing(Command):
    """What is closing is closed; anyone may say so."""
