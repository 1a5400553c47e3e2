"""Requests for savepoints and stops of a driver, what became of them, and how a stopped job goes on. Runs on Linux."""

from __future__ import annotations

from collections.abc import Callable

from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Request, Token
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.storage import S3Store
from tests.support.runs import Home, Running
from tests.support.waiting import wait_until


def begun(home: Home) -> bool:
    return home.coordinator().state.running() is not None


def ask(
    home: Home, running: Running, kind: str, begun: Callable[[Home], object] = begun, *, token: str = "a person"
) -> int:
    """Ask as soon as the driver runs. Return the id of the savepoint."""
    wait_until(lambda: begun(home), say=running.said)
    return home.coordinator().trigger(
        Request(token=token, kind=kind, folder=target(home), timeout_s=60.0, origin="cli", owner="ann")
    )


def target(home: Home) -> str:
    return f"{home.store.uri}/saved" if isinstance(home.store, S3Store) else f"file://{home.folder}/saved"


def found(home: Home, number: int) -> Checkpoint:
    checkpoint = home.coordinator().state.checkpoint(number)
    assert checkpoint
    return checkpoint


def resume(home: Home) -> None:
    """As ``checkpoints restore totals --from latest``."""
    coordinator = home.coordinator()
    base = coordinator.state.restore_point()
    token = Token(dag="", run="by hand", task="checkpoints restore")
    coordinator.journal.append(c.Restore(token=token, base=base, by="ann", reason="to go on"))


def whole(home: Home, number: int) -> set[str]:
    """The states of a published savepoint."""
    savepoint = open_savepoint(SavepointPointer.parse(found(home, number).target or ""), home.store)
    savepoint.verify()
    return set(savepoint.seal.states)
