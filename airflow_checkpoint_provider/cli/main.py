"""``checkpoints --root URI …``, without Airflow. Runs anywhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_checkpoint_provider.checkpoint.errors import (
    CheckpointError,
    CheckpointNotFound,
    CommitStateUnknown,
    InvalidConfig,
    InvalidName,
    Refused,
    StoreDenied,
)
from airflow_checkpoint_provider.checkpoint.journal import utc_now
from airflow_checkpoint_provider.checkpoint.names import pointer_of
from airflow_checkpoint_provider.cli import acting, report, telling
from airflow_checkpoint_provider.cli.output import write
from airflow_checkpoint_provider.cli.verbs import EXITS, HELP, VERBS
from airflow_checkpoint_provider.storage import Store, open_store

FAILED = 1
_CODES: tuple[tuple[type[CheckpointError], int], ...] = (
    (InvalidName, 2), (InvalidConfig, 2), (Refused, 3), (CheckpointNotFound, 4), (StoreDenied, 5), (CommitStateUnknown, 6),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    return run(options.verb, options, lambda: _store(options.root or _root_of(options)))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        "checkpoints", description=f"{HELP}. With Airflow: `airflow checkpoints`.", epilog=EXITS
    )
    top.add_argument(
        "--root", metavar="URI", help="where the checkpoints live; by default ./checkpoints, as in a script"
    )
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        one = verbs.add_parser(verb.name, help=verb.help, description=verb.description, epilog=EXITS)
        for argument in verb.arguments:
            one.add_argument(*argument.flags, **argument.options)
    return top


def _root_of(options: argparse.Namespace) -> str | None:
    """A pointer says itself where it leads."""
    return pointer_of(options.pointer).root if options.verb == "verify" else None


def _store(root: str | None) -> Store:
    if root is None and not Path("checkpoints").is_dir():
        raise InvalidConfig(
            "there is no folder ./checkpoints here; write --root URI, or `airflow checkpoints` on an Airflow host"
        )
    return open_store(root or "checkpoints")


def run(verb: str, options: argparse.Namespace, open_: Callable[[], Store]) -> int:
    """Do it and return the exit code: errors are one line each on stderr."""
    try:
        told = tell(verb, options, open_())
        write(told, options.output, sys.stdout)
        sys.stdout.flush()
    except CheckpointError as error:
        return _failed(error)
    except BrokenPipeError:  # `… | head` has read enough; nobody is there to be told when Python flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    for note in told.notes:
        print(note, file=sys.stderr)
    return max((_failed(error) for error in told.errors), default=0)


def tell(verb: str, options: argparse.Namespace, store: Store) -> report.Report:
    if verb == "show":
        show = telling.statistics if options.statistics else report.show
        return show(store, options.job, options.run, options.id, options.item)
    if verb == "story":
        return telling.story(store, options.job, options.run, options.attempt, options.item)
    if verb == "verify":
        return report.verify(store, options.pointer)
    if verb in ("restore", "prune"):
        how = acting.How(options.dry_run, options.yes)
        if verb == "prune":
            return acting.prune(store, options.job, options.run, options.item, how)
        return acting.restore(store, options.job, options.run, options.item, options.where, how)
    if options.limit < 1:
        raise InvalidConfig(f"--limit {options.limit}: write 1 or more")
    if verb == "list":
        return report.list_(store, options.job, options.run, options.item, options.limit)
    return report.jobs(store, options.limit, utc_now())


def _failed(error: CheckpointError) -> int:
    print(" ".join(str(error).split()), file=sys.stderr)
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


if __name__ == "__main__":
    sys.exit(main())
