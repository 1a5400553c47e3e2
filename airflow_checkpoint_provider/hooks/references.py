"""References to checkpoints, savepoints and starting points, as tasks take and return them. Runs in Airflow (all processes)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

from airflow_checkpoint_provider.errors import InvalidConfig, InvalidName
from airflow_checkpoint_provider.protocol.keys import (
    History,
    Pointer,
    SavepointPointer,
    check_item,
    checkpoint_id,
    pointer_of,
)
from airflow_checkpoint_provider.protocol.launch_records import Launch
from airflow_checkpoint_provider.protocol.state import State

LINK_KEY = "_link_CheckpointsLink"
"""The key of the XCom that holds the address of a task's page: the name that Airflow gives a link of that class."""

_EXPECTED = {
    "checkpoint": "checkpoint: write checkpoint=trigger.output, where `trigger` is a TriggerCheckpointOperator that has succeeded,"
    " or a pointer <root>/jobs/…/chk-7",
    "pointer": "savepoint: write pointer=savepoint.output, where `savepoint` is a TriggerSavepointOperator that has succeeded, or"
    " its directory, <target>/savepoint-<job>-7-<nonce>",
}


@dataclass(frozen=True)
class HistoryReference:
    """A history: the connection to its store, its prefix there, and the run in it that is meant (empty: the newest)."""

    connection: str
    history: str
    run: str = ""

    @property
    def query(self) -> str:
        """Return the reference as the query of an address."""
        return urlencode({name: value for name, value in asdict(self).items() if value})

    @classmethod
    def of(cls, query: Mapping[str, Sequence[str]]) -> HistoryReference | None:
        """Return the history that the query of an address names; None if it names none."""
        connection, history, run = (query.get(name, [""])[0] for name in ("connection", "history", "run"))
        return cls(connection, history, run) if connection and history else None


@dataclass(frozen=True)
class CheckpointReference:
    """The checkpoint that a task's parameter names: history and id.

    ``root`` is the URI of the store, or None for a savepoint's XCom: that names the savepoint's directory (``target``), and
    the connection leads to the store of its ``job``. ``incarnation`` is that of the history, if an XCom says it.
    """

    prefix: str
    id: int
    root: str | None = None
    job: str = ""
    target: str | None = None
    incarnation: str = ""

    @classmethod
    def of(cls, checkpoint: object) -> CheckpointReference:
        """Return the reference in the XCom of a trigger, or in a pointer. Raise ``InvalidConfig`` or ``InvalidName``."""
        target, incarnation = pointer_in(checkpoint), incarnation_in(checkpoint)
        if isinstance(checkpoint, Mapping) and isinstance(pointer_of(target), SavepointPointer):
            job, scope, number, item = (checkpoint.get(name) for name in ("job", "scope", "id", "item"))
            if isinstance(job, str) and isinstance(scope, str) and isinstance(number, int):
                history = History(job, scope or None, None if item is None else check_item(item))
                return cls(history.prefix, number, job=job, target=target, incarnation=incarnation)
        pointer = Pointer.parse(target)
        return cls(pointer.prefix, pointer.id, root=pointer.root, incarnation=incarnation)


def pointer_in(value: object, name: str = "checkpoint") -> str:
    """Return the pointer in a task's parameter ``name``: an XCom of a trigger, or text. Raise ``InvalidConfig`` for others."""
    pointer = value.get("pointer") if isinstance(value, Mapping) else value
    if not isinstance(pointer, str):
        raise InvalidConfig(f"{name}={value!r} is not a {_EXPECTED[name]}")
    return pointer


def incarnation_in(value: object) -> str:
    """Return the incarnation of the history in the XCom of a trigger; empty for text, and for what a person has written without it.

    Ids begin at 1 again when a history is deleted and begun anew, so a pointer may mean another checkpoint than it did.
    """
    found = value.get("incarnation") if isinstance(value, Mapping) else None
    if found is not None and not isinstance(found, str):
        raise InvalidConfig(
            f"{value!r}: its incarnation is no text. Write the output of a task as it is, or leave it out"
        )
    return found or ""


def start_in(restore: object, *keywords: str) -> str:
    """Return a task's parameter ``restore`` as text: one of ``keywords``, an id, or a pointer.

    Raise ``InvalidConfig``, or ``InvalidName`` if it is text.
    """
    start = restore.get("pointer") if isinstance(restore, Mapping) else restore
    if isinstance(start, int):
        start = str(start)
    if not isinstance(start, str):
        raise InvalidConfig(_no_start(restore, keywords))
    if start not in keywords and checkpoint_id(start) is None:
        try:
            pointer_of(start)
        except InvalidName:
            raise InvalidName(_no_start(start, keywords)) from None
    return start


def _no_start(restore: object, keywords: Sequence[str]) -> str:
    words = ", ".join(f'"{word}"' for word in keywords)
    return (
        f'restore={restore!r} is not a place to start from: write {words}, an id such as "chk-7", a pointer <root>/jobs/…/chk-7, the'
        " directory of a savepoint, or the output of a task that has made one of these"
    )


def known_at_parse(value: object) -> bool:
    """Return whether a parameter is known when its DAG is parsed: it holds no template and is no other task's output."""
    plain = value is None or isinstance(value, str | int | Mapping)
    return plain and not any(brace in str(value) for brace in ("{{", "{%"))


def reference(state: State, pointer: Pointer, target: str | None = None) -> dict[str, Any]:
    """Return the XCom of a checkpoint; ``target`` is the directory of a savepoint."""
    return {
        "job": state.job,
        "scope": state.scope,
        **item_in(state),
        "id": pointer.id,
        "pointer": target or str(pointer),
        "incarnation": state.incarnation,
    }


def item_in(state: State) -> dict[str, str]:
    """Return the item of a history as a part of an XCom; nothing for a history without one."""
    return {} if state.item is None else {"item": state.item}


def launch_reference(state: State, launch: Launch, history: str, attempt: int | None) -> dict[str, Any]:
    """Return the XCom ``launch``, for readers while the driver runs; ``history`` is the URI of the history.

    ``attempt`` is None until the driver has attached; ``restored`` is the checkpoint from which it starts.
    """
    point = launch.restore_point
    return {
        "job": state.job,
        "run": launch.spec.run,
        **item_in(state),
        "attempt": attempt,
        "history": history,
        "restored": str(point) if point else None,
    }
