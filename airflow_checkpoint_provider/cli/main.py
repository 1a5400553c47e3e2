"""``checkpoints --root URI …``, without Airflow. Runs anywhere."""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from airflow_checkpoint_provider import __version__, errors
from airflow_checkpoint_provider.cli.output import Report, write, write_lines
from airflow_checkpoint_provider.cli.verbs import EXITS, HELP, VERBS, Verb, by_pointer, name
from airflow_checkpoint_provider.protocol.keys import SAVEPOINTS, SavepointPointer, pointer_of
from airflow_checkpoint_provider.protocol.wording import nearest, typed_command
from airflow_checkpoint_provider.storage import LocalStore, Store, open_store

FAILED = 1
EXIT_CODES: tuple[tuple[int, tuple[type[errors.CheckpointError], ...]], ...] = (
    (2, (errors.InvalidName, errors.InvalidConfig, errors.WrongUse, errors.NotSupportedYet, errors.StoreMisconfigured)),
    (FAILED, (errors.CheckpointWasAborted, errors.NotStopped, errors.EndedAfterStop)),
    (3, (errors.Refused,)),
    (4, (errors.CheckpointNotFound,)),
    (5, (errors.StoreDenied,)),
    (6, (errors.CommitStateUnknown, errors.StillPending)),
)
"""The first row with a class of the error counts; every other error is ``FAILED``."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parsed(arguments)
    root = f" --root {shlex.quote(options.root)}" if options.root is not None else ""
    with typed_command(f"checkpoints{root}"):
        return run(options.verb, options, lambda: _store(options))


class _Parser(argparse.ArgumentParser):
    """A parser that names the word that was perhaps meant."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        super().error(message + (nearest(wrong[1], re.findall(r"[\w-]+", wrong[2])) if wrong else ""))


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    top = parser()
    options, unknown = top.parse_known_args(arguments)
    if unknown:
        known = [flag for flags, _ in VERBS[options.verb] for flag in flags if flag.startswith("-")]
        meant = nearest(unknown[0].partition("=")[0], [*known, "--root"])
        top.error(
            f"unrecognized arguments of {name(options.verb)}: {' '.join(unknown)}.{meant}{_before_command(options.verb)}"
        )
    return options


def _before_command(verb: Verb) -> str:
    """Return a sentence about the words of another command, which look like options of the verb."""
    return " Write -- before the command" if any(flags == ("command",) for flags, _ in VERBS[verb]) else ""


@functools.cache  # it has a hundred arguments
def parser() -> argparse.ArgumentParser:
    top = _Parser("checkpoints", description=f"{HELP} With Airflow: `airflow checkpoints`.", epilog=EXITS)
    top.add_argument("--root", metavar="URI", help="root of the checkpoint storage (default: ./checkpoints)")
    top.add_argument("--version", action="version", version=__version__)
    verbs = top.add_subparsers(metavar="VERB", required=True)
    for verb, arguments in VERBS.items():
        own = verbs.add_parser(name(verb), help=verb.__doc__, description=verb.__doc__, epilog=EXITS)
        for flags, options in arguments:
            own.add_argument(*flags, **options)
        own.add_argument(
            "--root", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )  # people also write it after the verb
        own.set_defaults(verb=verb)
    return top


def _store(options: argparse.Namespace) -> Store:
    root = options.root
    if root is None and by_pointer(options):
        root = root_of(options.pointer)
    if root is None and not Path("checkpoints").is_dir():
        raise errors.InvalidConfig(
            "There is no directory ./checkpoints. Write --root URI, or use `airflow checkpoints`"
        )
    store = open_store(root or "checkpoints")
    return store if by_pointer(options) else with_root(store)


def with_root(store: Store) -> Store:
    """Return the store. Raise ``StoreMisconfigured`` if its root is a folder that does not exist: "no jobs" would hide the wrong path."""
    if isinstance(store, LocalStore):
        store.check_root()
    return store


def root_of(pointer: str) -> str:
    """Return the root of the storage to which a pointer leads. A savepoint lies in ``ROOT/savepoints`` by default; for a
    savepoint in any other directory, that directory is returned."""
    parsed = pointer_of(pointer)
    if not isinstance(parsed, SavepointPointer):
        return parsed.root
    above = parsed.root.removesuffix(f"/{SAVEPOINTS}")
    return parsed.root if not above or above.endswith("/") else above


def run(verb: Verb, options: argparse.Namespace, open_: Callable[[], Store]) -> int:
    """Run a verb, print its report, and return the exit code. An error is one line on stderr."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # some terminals cannot show each letter
    try:
        _check_text(options)
        report = verb(open_(), options)
    except errors.CheckpointError as error:
        return _failed(error)
    unwritten = _write(report, options.output)
    if report.notes:
        write_lines(report.notes, sys.stderr)
    code = max((_failed(error) for error in report.errors), default=0)
    if unwritten is None:
        return code
    if unwritten:
        print(
            f"the report could not be written ({unwritten}). `{name(verb)}` itself has run to its end", file=sys.stderr
        )
    return max(code, FAILED)


def _write(report: Report, output: str) -> str | None:
    """Write a report to stdout. Return why that is not possible, else None; nothing to say about a pipe that was closed, as by `… | head`."""
    if sys.stdout is None:  # as after `… >&-`
        return "stdout is closed"
    try:
        write(report, output, sys.stdout)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout again at its end
        return "" if isinstance(error, BrokenPipeError) else str(error.strerror)
    return None


def _check_text(options: argparse.Namespace) -> None:
    """Raise ``InvalidName`` for an argument that is not UTF-8, which no object of the store can hold."""
    for value in vars(options).values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and text != text.encode(errors="replace").decode():
                raise errors.InvalidName(f"the argument {text!r} is not UTF-8. Write it in UTF-8")


def _failed(error: errors.CheckpointError) -> int:
    print(" ".join(str(error).split()), file=sys.stderr)
    return next((code for code, kinds in EXIT_CODES if isinstance(error, kinds)), FAILED)


if __name__ == "__main__":
    sys.exit(main())
