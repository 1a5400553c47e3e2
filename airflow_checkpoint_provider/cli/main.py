"""``checkpoints --root URI …``, without Airflow. Runs anywhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_checkpoint_provider.cli import change, request, show
from airflow_checkpoint_provider.cli.output import Report, write
from airflow_checkpoint_provider.cli.verbs import EXITS, HELP, VERBS
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import (
    Aborted,
    CheckpointError,
    CheckpointNotFound,
    CommitStateUnknown,
    InvalidConfig,
    InvalidName,
    NotStopped,
    Refused,
    StillPending,
    StoreDenied,
    StoreMisconfigured,
)
from airflow_checkpoint_provider.protocol import kinds
from airflow_checkpoint_provider.protocol.config import seconds
from airflow_checkpoint_provider.protocol.keys import pointer_of
from airflow_checkpoint_provider.storage import Store, open_store

FAILED = 1
_CODES: tuple[tuple[type[CheckpointError], int], ...] = (
    (InvalidName, 2), (InvalidConfig, 2), (StoreMisconfigured, 2), (Aborted, FAILED), (NotStopped, FAILED), (Refused, 3),
    (CheckpointNotFound, 4), (StoreDenied, 5), (CommitStateUnknown, 6), (StillPending, 6),
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
    """A pointer says itself where it leads; a savepoint lies where its history is, unless it was sent elsewhere."""
    if options.verb not in ("verify", "dispose"):
        return None
    root = pointer_of(options.pointer).root
    above = root.removesuffix(f"/{request.SAVEPOINTS}") if options.verb == "dispose" else ""
    return root if not above or above.endswith("/") else above


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


def tell(verb: str, options: argparse.Namespace, store: Store) -> Report:
    if verb == "show":
        told = show.statistics if options.statistics else show.show
        return told(store, options.job, options.run, options.id, options.item)
    if verb == "story":
        return show.story(store, options.job, options.run, options.attempt, options.item)
    if verb == "verify":
        return show.verify(store, options.pointer)
    if verb in ("trigger", "savepoint"):
        at_most = None if options.timeout is None else seconds(options.timeout, "--timeout")
        patience = request.Patience(options.wait, at_most)
        return request.ask(store, options.job, options.run, options.item, _wish(verb, options), patience)
    if verb in ("stop", "restore", "dispose", "prune"):
        return _acted(verb, options, store, change.How(options.dry_run, options.yes))
    if options.limit < 1:
        raise InvalidConfig(f"--limit {options.limit}: write 1 or more")
    if verb == "list":
        return show.list_(store, options.job, options.run, options.item, options.limit)
    return show.jobs(store, options.limit, utc_now())


def _acted(verb: str, options: argparse.Namespace, store: Store, how: change.How) -> Report:
    if verb == "dispose":
        return change.dispose(store, options.pointer, how, guessed=vars(options).get("root", store.uri) is None)
    meant = (store, options.job, options.run, options.item)
    if verb == "stop":
        return request.stop(*meant, _wish(verb, options), how)
    if verb == "restore":
        return change.restore(*meant, change.Where(options.where, options.claim, _renames(options.rename)), how)
    return change.prune(*meant, how)


def _wish(verb: str, options: argparse.Namespace) -> request.Wish:
    if verb == "trigger":
        return request.Wish(kind=kinds.FULL_CHECKPOINT if options.full else kinds.CHECKPOINT)
    if verb == "stop":
        return request.Wish(kind=kinds.TERMINATE_SAVEPOINT if options.drain else kinds.SUSPEND_SAVEPOINT, to=options.to)
    return request.Wish(kind=kinds.SAVEPOINT, to=options.to, name=options.name, pinned=options.pinned)


def _renames(written: Sequence[str]) -> dict[str, str]:
    """``OLD=NEW``, each OLD once."""
    pairs = [one.partition("=") for one in written]
    for (old, _, new), text in zip(pairs, written, strict=True):
        if not old or not new or [one[0] for one in pairs].count(old) > 1:
            raise InvalidConfig(f"--rename {text}: write OLD=NEW, each state of the checkpoint at most once")
    return {old: new for old, _, new in pairs}


def _failed(error: CheckpointError) -> int:
    print(" ".join(str(error).split()), file=sys.stderr)
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


if __name__ == "__main__":
    sys.exit(main())
