"""The history to which an earlier try of a task wrote, in the task's state store. Runs in Airflow (worker).

A later try of the task compares it with its own history: the history may have been deleted, or the task may name another one now.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any
from urllib.parse import quote

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # its stub lacks it

from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.liveness import Liveness, beat_keys
from airflow_checkpoint_provider.errors import CheckpointError, HistoryGone, InvalidName, Refused
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators._launched import EarlierHistory, LaunchedDriver
from airflow_checkpoint_provider.protocol.keys import History, Keys, check_item, safe_token
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import of_connection, stop, title, typed_command

HISTORY_KEY = "checkpoint_history"


def history_key(item: str | None) -> str:
    """Return the key in the state store of a task, which all items of its map index share."""
    return HISTORY_KEY if item is None else f"{HISTORY_KEY}.{safe_token(item)}"


def remember(context: Any, launch: LaunchedDriver) -> None:
    """Remember the history of a launch for later tries."""
    written = EarlierHistory(
        launch.state.incarnation, launch.store.uri, launch.keys.prefix, launch.parameters.connection
    )
    key = history_key(launch.parameters.history.item)
    context["task_state_store"].set(key, asdict(written), retention=NEVER_EXPIRE)


def known(context: Any, item: str | None) -> EarlierHistory | None:
    """Return the history to which an earlier try wrote; None if there is none."""
    found = context["task_state_store"].get(history_key(item), None)
    if isinstance(found, str):  # as earlier versions of this package kept it
        return EarlierHistory(found)
    names = [field.name for field in fields(EarlierHistory)]
    return EarlierHistory(**{name: found[name] for name in names if name in found}) if found else None


@contextlib.contextmanager
def naming_its_driver(context: Any, item: str | None) -> Iterator[None]:
    """Add to the error of a history that cannot be opened that the driver of an earlier try may go on, which no task follows then."""
    try:
        yield
    except (HistoryGone, Refused):  # the history was read, and the error says what it knows
        raise
    except CheckpointError as error:
        earlier = None
        with contextlib.suppress(InvalidName):  # an item that names nothing has no history
            earlier = known(context, None if item is None else check_item(item))
        if earlier is None or not earlier.history:
            raise
        said = f"{error.message.rstrip('.')}. {_goes_on(earlier, context['ti'].run_id, item)}"
        raise type(error)(said, **error.about) from error


def _goes_on(earlier: EarlierHistory, run: str, item: str | None) -> str:
    with typed_command("airflow checkpoints", of_connection(earlier.connection)):
        ends = stop(_unread(earlier, run, item))
    return (
        "The driver that this task has submitted was not asked to stop. If it still runs, the next try follows it, once the storage can be"
        f" opened. If no try comes: clear the task, or end the driver by `{ends}`"
    )


def _unread(earlier: EarlierHistory, run: str, item: str | None) -> State:
    """Return a state with as much as the place of a history says: its job, and its run if that is this one."""
    job = Keys(earlier.history).job
    return State(job=job, scope=run if earlier.history == History(job, run, item).prefix else "", item=item)


def check(launch: LaunchedDriver, state: State) -> None:
    """Raise ``HistoryGone`` if an earlier try of this task wrote to another history than this one, which has ``state``."""
    earlier, root, prefix = launch.parameters.earlier, launch.store.uri, launch.keys.prefix
    if earlier is None or earlier.incarnation == state.incarnation:
        return
    if earlier.history and (earlier.root, earlier.history) != (root, prefix):
        with typed_command("airflow checkpoints", of_connection(earlier.connection)):
            raise HistoryGone(_elsewhere(launch, earlier))
    raise HistoryGone(
        f"{launch.parameters.history.job}: an earlier try of this task wrote to a history at {root}/{prefix} that is not there any more."
        f" Was it deleted, or was the connection changed? Put the history back. To start without state, {_forget(launch)}"
    )


def _elsewhere(launch: LaunchedDriver, earlier: EarlierHistory) -> str:
    """Say that a task names another history than before, and whether a driver of the earlier one lives: no task follows it any more."""
    state, lives = _observe(launch, earlier)
    name, ends = title(state, state.scope), stop(state)
    if lives:
        then = (
            f"Its driver still runs. To begin anew, stop it first: `{ends}`. Then clear the task: the error says how it starts without that"
            " state"
        )
    elif lives is None:
        then = (
            "Its driver may still run, or wait to start: nothing is seen of it from here. To begin anew, stop it first:"
            f" `{ends}`. Then {_forget(launch)}"
        )
    else:
        then = f"No driver of it runs. To begin anew, {_forget(launch)}"
    return (
        f"{launch.title}: an earlier try of this task wrote to job {name}, at {earlier.root}/{earlier.history}. Now the task names"
        f" {launch.store.uri}/{launch.keys.prefix}. To continue there, put back what was changed, job_id=, scope=, checkpoint_conn_id= or the"
        f" root of the connection, and clear the task. {then}"
    )


def _observe(launch: LaunchedDriver, earlier: EarlierHistory) -> tuple[State, bool | None]:
    """Return the state of the earlier history, and whether a driver of it lives; None if that cannot be told."""
    with contextlib.suppress(CheckpointError):
        same = earlier.root == launch.store.uri
        store = launch.store if same else CheckpointStorageHook(earlier.connection).get_store_at(earlier.root)
        state = open_history(store, earlier.history).journal.catch_up()
        if state.n >= 0:
            lives = Liveness(store, launch.beats).wait(beat_keys(Keys(earlier.history), state))
            return state, lives or (None if state.starting() else False)  # an application may be queued
    return _unread(earlier, launch.parameters.token.run, launch.parameters.token.item), None


def _forget(launch: LaunchedDriver) -> str:
    """Say how the task forgets the history, so that it starts without its state."""
    token, index = launch.parameters.token, launch.parameters.map_index
    instance = f"dags/{quote(token.dag)}/dagRuns/{quote(token.run, '')}/taskInstances/{quote(token.task)}"
    key, of_index = history_key(token.item), "" if index is None else f"?map_index={index}"
    return (
        f"delete the key '{key}' in Airflow, tab Storage of this task, or with"
        f' `curl -X DELETE -H "Authorization: Bearer $TOKEN" $AIRFLOW/api/v2/{instance}/state-store/{key}{of_index}`. Then clear the task'
    )
