"""The verbs of both command lines: a function each, and the arguments it takes. Runs anywhere.

Airflow imports this module at each of its commands, so a verb imports what it needs when it is called.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.cli import LIMIT

if TYPE_CHECKING:
    from airflow_checkpoint_provider.cli.change import Approval
    from airflow_checkpoint_provider.cli.output import Report
    from airflow_checkpoint_provider.cli.request import Names, WaitOptions
    from airflow_checkpoint_provider.storage import Store

HELP = "List, trigger, restore and delete checkpoints of Spark jobs."
EXITS = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused, 4 not found, 5 denied by the store,"
    " 6 outcome unknown (look before you try again)."
)

# -- the verbs; the docstring of a verb is its help ------------------------------------------------------------------------


def jobs(store: Store, options: Namespace) -> Report:
    """List the jobs: the newest run of each, its state, and where its next attempt starts."""
    from airflow_checkpoint_provider.cli import lists
    from airflow_checkpoint_provider.coordinator.journal import utc_now

    return lists.jobs(store, options.limit, utc_now())


def list_(store: Store, options: Namespace) -> Report:
    """List the checkpoints and savepoints of a job or of one run, newest first."""
    from airflow_checkpoint_provider.cli import lists

    return lists.list_(store, options.job, options.run, options.limit, options.item)


def show(store: Store, options: Namespace) -> Report:
    """Show the summary table of a run and the progress of its queries, or one checkpoint with its states and its pointer."""
    from airflow_checkpoint_provider.cli import show
    from airflow_checkpoint_provider.coordinator.journal import utc_now

    if options.statistics:
        return show.statistics(store, options.job, options.run, options.id, options.item)
    return show.show(store, options.job, options.run, options.id, utc_now(), options.item)


def story(store: Store, options: Namespace) -> Report:
    """Tell why an attempt was started, where it started, and how it ended."""
    from airflow_checkpoint_provider.cli import show

    return show.story(store, options.job, options.run, options.attempt, options.item)


def verify(store: Store, options: Namespace) -> Report:
    """Check that a checkpoint or savepoint is complete: its metadata, and the names, sizes and footers of all its files."""
    from airflow_checkpoint_provider.cli import show

    return show.verify(store, _pointer(store, options), deep=options.deep)


def trigger(store: Store, options: Namespace) -> Report:
    """Trigger a checkpoint of a running job, and wait until it is completed."""
    from airflow_checkpoint_provider.cli import request
    from airflow_checkpoint_provider.protocol import kinds

    wanted = request.WantedCheckpoint(kind=kinds.FULL_CHECKPOINT if options.full else kinds.CHECKPOINT)
    return request.ask(store, _names(options), wanted, _wait_options(options), options.request_id)


def savepoint(store: Store, options: Namespace) -> Report:
    """Trigger a savepoint of a running job, and wait until it is published."""
    from airflow_checkpoint_provider.cli import request
    from airflow_checkpoint_provider.protocol import kinds

    wanted = request.WantedCheckpoint(kind=kinds.SAVEPOINT, to=options.to, name=options.name, pinned=options.pinned)
    return request.ask(store, _names(options), wanted, _wait_options(options), options.request_id)


def stop(store: Store, options: Namespace) -> Report:
    """Stop a running job with a savepoint; nothing starts the job again until it is restored."""
    from airflow_checkpoint_provider.cli import request
    from airflow_checkpoint_provider.protocol import kinds

    kind = kinds.TERMINATE_SAVEPOINT if options.drain else kinds.SUSPEND_SAVEPOINT
    wanted = request.WantedCheckpoint(kind=kind, to=options.to)
    waiting = request.WaitOptions(seconds=_timeout(options))
    return request.stop(store, _names(options), wanted, waiting, _approval(options), options.request_id)


def restore(store: Store, options: Namespace) -> Report:
    """Set where the next attempt of a job starts; stops the current attempt and ends a suspension, but submits nothing."""
    from airflow_checkpoint_provider.cli import change

    source = change.RestoreSource(
        options.source, options.claim, change.parse_renames(options.rename), options.rewind_sink
    )
    return change.restore(store, options.job, options.run, source, _approval(options), options.item)


def preflight(store: Store, options: Namespace) -> Report:
    """Run another script until its queries are compared with a checkpoint: could they continue? The job may run meanwhile."""
    from airflow_checkpoint_provider.cli import change, preflight

    approval = change.Approval(yes=options.yes)
    return preflight.preflight(store, options.job, options.source, options.command, approval, options.item)


def release(store: Store, options: Namespace) -> Report:
    """Let a streaming query continue without this package, in a folder that gets a copy of its newest location."""
    from airflow_checkpoint_provider.cli import release

    return release.release(
        store, options.job, options.query, options.folder, options.adopted, _approval(options), options.item
    )


def rewound(store: Store, options: Namespace) -> Report:
    """List the files that queries took out of a file sink when they went back; put them back, or delete them."""
    from airflow_checkpoint_provider.cli import rewound

    approval = _approval(options)
    return rewound.rewound(store, options.sink, options.taken, approval, back=options.put_back, delete=options.delete)


def dispose(store: Store, options: Namespace) -> Report:
    """Delete a savepoint; refused while its job may still start from it."""
    from airflow_checkpoint_provider.cli import change

    pointer = _pointer(store, options)
    if options.forget:
        return change.forget(store, pointer, _approval(options))
    named = [vars(options).get(name) for name in ("root", "conn_id")]  # Airflow's command has a connection, ours a root
    history_is_here = any(named) or not by_pointer(options)
    return change.dispose(store, pointer, _approval(options), history_is_here=history_is_here)


def prune(store: Store, options: Namespace) -> Report:
    """Delete checkpoints that no policy keeps, and files that ended attempts left behind."""
    from airflow_checkpoint_provider.cli.prune import prune as pruned

    return pruned(store, options.job, options.run, _approval(options), options.item)


def by_pointer(options: Namespace) -> bool:
    """Return whether the arguments name a checkpoint by its pointer, which leads to its store, and not by a job."""
    from airflow_checkpoint_provider.protocol.keys import checkpoint_id, is_job_id

    pointer = vars(options).get("pointer")
    named = options.run is not None or options.item is not None if pointer is not None else False
    return pointer is not None and (not is_job_id(pointer) or (not named and checkpoint_id(pointer) is not None))


def _pointer(store: Store, options: Namespace) -> str:
    """Return the pointer that the arguments name: as it is written, or by a job, a run and a checkpoint."""
    from airflow_checkpoint_provider.cli import show
    from airflow_checkpoint_provider.errors import InvalidName

    pointer: str = options.pointer
    if not by_pointer(options):
        return show.pointer(store, pointer, options.run, options.id, options.item)
    if options.run is not None or options.item is not None:
        named = options.run if options.run is not None else f"--item={options.item}"
        raise InvalidName(f"{named!r} after a pointer means nothing. Write POINTER alone, or JOB [RUN] chk-7")
    return pointer


def _names(options: Namespace) -> Names:
    from airflow_checkpoint_provider.cli.request import Names

    return Names(options.job, options.run, options.item)


def _wait_options(options: Namespace) -> WaitOptions:
    from airflow_checkpoint_provider.cli.request import WaitOptions

    return WaitOptions(options.wait, _timeout(options))


def _timeout(options: Namespace) -> float:
    """Return ``--timeout`` in seconds. A number without a unit is in seconds, because an argument is always text."""
    from airflow_checkpoint_provider.protocol.config import seconds

    text = options.timeout
    number = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", text, re.IGNORECASE)
    return seconds(float(text) if number else text, "--timeout")


def _approval(options: Namespace) -> Approval:
    from airflow_checkpoint_provider.cli.change import Approval

    return Approval(options.dry_run, options.yes)


# -- their arguments -----------------------------------------------------------------------------------------------------

Argument = tuple[tuple[str, ...], dict[str, Any]]
"""Flags and options, as ``ArgumentParser.add_argument`` takes them."""


def _argument(*flags: str, **options: Any) -> Argument:
    return flags, options


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


_JOB = _argument("job", metavar="JOB", help="job id, as `jobs` prints it")
_RUN = _argument("run", metavar="RUN", nargs="?", help="run id, as `list` prints it (default: the newest run)")
_RUNS = _argument("run", metavar="RUN", nargs="?", help="run id, as `list` prints it (default: all runs)")
_ITEM = _argument("--item", metavar="ITEM", help="item of a mapped task, as `list` prints it")
_ID = _argument("id", metavar="ID", nargs="?", help="checkpoint id, such as chk-7; also directly after JOB")
_POINTER = _argument(
    "pointer",
    metavar="POINTER",
    help="URI of a checkpoint or savepoint, as `show JOB ID` prints it; or the job, with RUN and ID after it",
)
_DEEP = _argument("--deep", action="store_true", help="read all rows too, and compare each page with its checksum")
_LIMIT = _argument("--limit", type=_positive, default=LIMIT, metavar="N", help=f"lines to print (default: {LIMIT})")
_STATISTICS = _argument(
    "--statistics",
    action="store_true",
    help="print counts, durations and sizes instead; with -o json as Flink's REST API",
)
_ATTEMPT = _argument("--attempt", type=_positive, metavar="N", help="attempt number (default: the newest attempt)")
_FULL = _argument("--full", action="store_true", help="write every state again instead of sharing unchanged files")
_WAIT = _argument("--wait", action=BooleanOptionalAction, default=True, help="wait for the outcome (default: --wait)")
_TIMEOUT = _argument(
    "--timeout",
    metavar="DURATION",
    default="7 d",
    help="stop waiting after this time, such as 30 (seconds), '90 s' or '30 min'; the request stays (default: 7 d)",
)
_REQUEST_ID = _argument(
    "--request-id",
    metavar="TEXT",
    help="a name for this request: the same verb with the same name requests nothing new, it waits for the first request",
)
_TO = _argument(
    "--to",
    metavar="URI",
    help="path (not a relative one) or URI of the directory in which the savepoint gets one of its own (default: ROOT/savepoints)",
)
_NAME = _argument("--name", metavar="TEXT", help="a note that `list` prints")
_PINNED = _argument("--pinned", action="store_true", help="never delete the savepoint by a retention policy")
_DRAIN = _argument(
    "--drain", action="store_true", help="first let each streaming query read all rows that have arrived"
)
_FROM = _argument(
    "--from",
    dest="source",
    required=True,
    metavar="SOURCE",
    help="latest, run-start (where the run began), none, a checkpoint id such as chk-7, or the URI of a checkpoint or savepoint",
)
_CHECKPOINT = _argument(
    "--from",
    dest="source",
    default="latest",
    metavar="SOURCE",
    help="latest, a checkpoint id such as chk-7, or the URI of a checkpoint or savepoint (default: latest)",
)
_COMMAND = _argument(
    "command",
    nargs="+",
    metavar="COMMAND",
    help="how the script is started; write -- before it: -- spark-submit app.py",
)
_CLAIM = _argument(
    "--claim", action="store_true", help="let the job own the savepoint and delete it when its retention policy says so"
)
_RENAME = _argument(
    "--rename",
    action="append",
    default=[],
    metavar="OLD=NEW",
    help="restore state OLD of the checkpoint as state NEW; may be repeated",
)
_REWIND_SINK = _argument(
    "--rewind-sink",
    action="store_true",
    help="let the job go back although its sinks hold later rows. Files of a streaming query are moved into a folder of the sink (see"
    " rewound). Rows that later runs wrote with job.sink are deleted. Restore the Delta or Iceberg table of a query yourself first",
)
_QUERY = _argument("query", metavar="QUERY", help="uid of the query, as start_query takes it")
_FOLDER = _argument(
    "--to",
    dest="folder",
    required=True,
    metavar="FOLDER",
    help="path or URI of a new folder, the next checkpointLocation",
)
_ADOPTED = _argument(
    "--adopted",
    metavar="LOCATION",
    help="the location that adopt= named; needed until the query has caught up here, and if the takeover stopped after the fence",
)
_SINK = _argument("sink", metavar="SINK", help="path or URI to which the query writes its files")
_TAKEN = _argument(
    "taken",
    metavar="FOLDER",
    nargs="?",
    help="one of the folders that are listed (default: the newest to put back, all to delete)",
)
_PUT_BACK = _argument(
    "--put-back",
    action="store_true",
    help="put the files back into the sink; files that were written since are moved aside",
)
_DELETE = _argument("--delete", action="store_true", help="delete the files that were taken out, for ever")
_FORGET = _argument(
    "--forget",
    action="store_true",
    help="drop the record of a savepoint that was moved or removed; POINTER is where it was",
)
_DRY_RUN = _argument("--dry-run", action="store_true", help="print what would be done, and change nothing")
_YES = _argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
_OUTPUT = _argument(
    "-o",
    "--output",
    choices=("table", "json", "plain"),
    default="table",
    help="plain is for scripts: no header, tabs between columns; of trigger, savepoint and stop the pointer alone (default: table)",
)

Verb = Callable[["Store", Namespace], "Report"]

VERBS: dict[Verb, tuple[Argument, ...]] = {
    jobs: (_LIMIT, _OUTPUT),
    list_: (_JOB, _RUNS, _ITEM, _LIMIT, _OUTPUT),
    show: (_JOB, _RUN, _ITEM, _ID, _STATISTICS, _OUTPUT),
    story: (_JOB, _RUN, _ITEM, _ATTEMPT, _OUTPUT),
    verify: (_POINTER, _RUN, _ITEM, _ID, _DEEP, _OUTPUT),
    trigger: (_JOB, _RUN, _ITEM, _FULL, _WAIT, _TIMEOUT, _REQUEST_ID, _OUTPUT),
    savepoint: (_JOB, _RUN, _ITEM, _TO, _NAME, _PINNED, _WAIT, _TIMEOUT, _REQUEST_ID, _OUTPUT),
    stop: (_JOB, _RUN, _ITEM, _TO, _DRAIN, _TIMEOUT, _REQUEST_ID, _DRY_RUN, _YES, _OUTPUT),
    restore: (_JOB, _RUN, _ITEM, _FROM, _CLAIM, _RENAME, _REWIND_SINK, _DRY_RUN, _YES, _OUTPUT),
    preflight: (_JOB, _ITEM, _CHECKPOINT, _COMMAND, _YES, _OUTPUT),
    release: (_JOB, _ITEM, _QUERY, _FOLDER, _ADOPTED, _DRY_RUN, _YES, _OUTPUT),
    rewound: (_SINK, _TAKEN, _PUT_BACK, _DELETE, _DRY_RUN, _YES, _OUTPUT),
    dispose: (_POINTER, _RUN, _ITEM, _ID, _FORGET, _DRY_RUN, _YES, _OUTPUT),
    prune: (_JOB, _RUNS, _ITEM, _DRY_RUN, _YES, _OUTPUT),
}


def name(verb: Verb) -> str:
    return verb.__name__.rstrip("_")
