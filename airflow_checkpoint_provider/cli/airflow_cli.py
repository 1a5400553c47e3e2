"""``airflow checkpoints …``. Runs in Airflow (command line). Airflow imports this at each of its commands: nothing heavy."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.cli.verbs import EXITS, HELP, VERBS

if TYPE_CHECKING:
    from airflow.cli.cli_config import GroupCommand

    from airflow_checkpoint_provider.storage import Store

CONNECTION = "checkpoint_default"


def get_cli_commands() -> list[GroupCommand]:
    """For Airflow's list of commands."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

    def arg(*flags: str, **options: Any) -> Arg:
        return Arg(flags, **options)  # type: ignore[no-untyped-call]

    connection = arg(
        "--conn-id", default=CONNECTION, help=f"connection of the checkpoint storage, default {CONNECTION}"
    )
    verbs = tuple(
        ActionCommand(
            verb.name, verb.help, lazy_load_command(f"{__name__}.run"),
            (*(arg(*one.flags, **one.options) for one in verb.arguments), connection),
            description=verb.description, epilog=EXITS,
        )
        for verb in VERBS
    )  # fmt: skip
    return [GroupCommand("checkpoints", HELP, verbs)]


def run(options: Namespace) -> None:
    """One verb; Airflow calls it with what its parser made."""
    from airflow_checkpoint_provider.cli import main

    code = main.run(options.subcommand, options, lambda: _store(options.conn_id))
    if code:
        raise SystemExit(code)


def _store(conn_id: str) -> Store:
    """The connection's; without the default one ``$AIRFLOW_HOME/checkpoints``, where jobs of a local master are, if it holds any."""
    from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
    from airflow_checkpoint_provider.hooks.connections import NoConnection

    try:
        return CheckpointStorageHook(conn_id).get_store()
    except NoConnection:
        local = CheckpointStorageHook(conn_id, master="local").get_store()
        if not any(local.folders("jobs")):
            raise
        return local
