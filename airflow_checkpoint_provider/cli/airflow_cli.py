"""``airflow checkpoints …``. Runs in Airflow (command line), which imports this at each of its commands: nothing heavy."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.cli.verbs import EXITS, HELP, VERBS, Verb, by_pointer, name

if TYPE_CHECKING:
    from airflow.cli.cli_config import GroupCommand

    from airflow_checkpoint_provider.storage import Store

CONNECTION = "checkpoint_default"  # as in ``protocol.wording``, which is too heavy here


def get_cli_commands() -> list[GroupCommand]:
    """Return the group ``checkpoints`` for Airflow's list of commands."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    def arg(*flags: str, **options: Any) -> Arg:
        return Arg(flags, **options)  # type: ignore[no-untyped-call]

    connection = arg(
        "--conn-id",
        metavar="ID",
        help=f"connection of the checkpoint storage (default: {CONNECTION})",
    )
    verbs = tuple(
        ActionCommand(
            name(verb),
            str(verb.__doc__),
            partial(run, verb),
            (*(arg(*flags, **options) for flags, options in arguments), connection),
            epilog=EXITS,
        )
        for verb, arguments in VERBS.items()
    )
    return [GroupCommand("checkpoints", HELP, verbs)]


def run(verb: Verb, options: Namespace) -> None:
    """Run a verb with the arguments that Airflow has parsed. Exits with its code."""
    from airflow_checkpoint_provider.cli import main
    from airflow_checkpoint_provider.protocol.wording import of_connection, typed_command

    connection = options.conn_id or CONNECTION
    with typed_command("airflow checkpoints", of_connection(connection)):
        code = main.run(verb, options, lambda: _store(connection, needs_root=not by_pointer(options)))
    if code:
        raise SystemExit(code)


def _store(conn_id: str, *, needs_root: bool) -> Store:
    """Return the store of the connection; if it does not exist, ``$AIRFLOW_HOME/checkpoints``, where jobs with a local
    Spark master write. Raises ``NoConnection`` if there are no jobs either. A verb with a pointer needs no root on this host."""
    from airflow_checkpoint_provider.cli.main import with_root
    from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
    from airflow_checkpoint_provider.hooks.connections import NoConnection

    try:
        store = CheckpointStorageHook(conn_id).get_store()
        return with_root(store) if needs_root else store
    except NoConnection as error:
        if error.about.get("named"):
            raise
        local = CheckpointStorageHook(conn_id, master="local").get_store()
        if not any(local.folders("jobs")):
            raise NoConnection(
                f"There is no connection {conn_id!r}, and no job in {local.uri}, where jobs with a local Spark master write without it."
                " Add the connection, or name another: --conn-id ID"
            ) from None
        return local
