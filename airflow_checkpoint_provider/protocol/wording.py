"""Wording that messages and the errors of the protocol share: titles, and commands to type. Runs anywhere."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime

from airflow_checkpoint_provider.protocol.fields import is_time
from airflow_checkpoint_provider.protocol.kafka_offsets import Gap
from airflow_checkpoint_provider.protocol.launch_records import Launch
from airflow_checkpoint_provider.protocol.query_details import (
    DELTA,
    ICEBERG,
    QueryDetail,
    delta_version,
    iceberg_number,
)
from airflow_checkpoint_provider.protocol.state import State


def title(state: State, run: str = "") -> str:
    """Return ``flights_etl.delays, run scheduled__2026-11-20``."""
    item = f", item {state.item}" if state.item else ""
    return f"{state.job}{item}" + (f", run {run}" if run else "")


def item_option(state: State) -> list[str]:
    """Return the option that names the item of a history on a command line; nothing for a history without one. It is one word, because
    somebody may have called an item ``--yes``."""
    return [f"--item={state.item}"] if state.item else []


def not_attached(state: State, launch: Launch) -> str:
    """Say that a driver is starting: ``orders: launched 2026-11-20 02:14 by try 1, not attached yet``."""
    return f"{title(state, state.scope)}: launched {starting_since(launch)}"


def starting_since(launch: Launch) -> str:
    """Return ``2026-11-20 02:14 by try 1, not attached yet``."""
    by = f" by try {launch.spec.try_number}" if launch.spec.token.dag else ""
    return f"{launch.at[:16].replace('T', ' ')}{by}, not attached yet"


ALONE = ("checkpoints", "")
DEFAULT_CONNECTION = "checkpoint_default"
_TYPED: ContextVar[tuple[str, str] | None] = ContextVar("typed", default=None)


@contextlib.contextmanager
def typed_command(before: str, after: str = "") -> Iterator[None]:
    """Inside this block, let printed commands look like the one that the person typed: ``before`` precedes the verb, ``after`` ends
    the line. This is the only thing that texts take from outside of their arguments."""
    token = _TYPED.set((before, after))
    try:
        yield
    finally:
        _TYPED.reset(token)


def of_connection(conn_id: str) -> str:
    """Return the end of each command of Airflow for the jobs of a connection."""
    return "" if conn_id in ("", DEFAULT_CONNECTION) else f" --conn-id {shlex.quote(conn_id)}"


class Name(str):
    """A word of a command line that names something, without an option before it. Somebody may have called a run ``--yes``."""


def without_names_as_options(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return ``words`` in two parts. If one of the names begins with a dash, all names are in the second, which belongs after ``--``.

    The name ``--`` itself cannot be written on a command line: it becomes "…".
    """
    words = [*words]
    names = [word for word in words if isinstance(word, Name)]
    if not any(name.startswith("-") for name in names):
        return words, []
    return [word for word in words if not isinstance(word, Name)], [
        "--",
        *("…" if name == "--" else name for name in names),
    ]


def command(verb: str, *words: str, state: State | None = None) -> str:
    """Return a command to type. Jobs that Airflow launched are found through its connection. The word "…" stands for any."""
    launch = state.newest_launch if state else None
    known = (
        ("airflow checkpoints", of_connection(launch.spec.connection)) if launch and launch.spec.token.dag else ALONE
    )
    before, after = _TYPED.get() or known
    first, last = ([_quoted(word) for word in part] for part in without_names_as_options(words))
    return " ".join((before, verb, *first)) + " ".join((after, *last))


def _quoted(word: str) -> str:
    return word if word == "…" else shlex.quote(word)


def show(state: State, run: str) -> str:
    """Return the command that prints the table of a run again."""
    return command("show", Name(state.job), Name(state.scope or run), *item_option(state), state=state)


def restore(state: State | None, where: str, *options: str) -> str:
    """Return the command that restores this history, and no other history of its job, from ``where``. None stands for any job."""
    if state is None:
        return command("restore", "JOB", "--from", where, *options)
    return command("restore", *_names(state), "--from", where, *options, state=state)


def run_start(state: State) -> str:
    """Return the command with which the newest run of this history starts over."""
    return restore(state, "run-start")


def keeping(uids: Iterable[str]) -> str:
    """Return the option of a job that keeps these states, though its script does not use them."""
    return f"allow_non_restored_state={json.dumps(dict.fromkeys(uids, 'keep'), ensure_ascii=False)}"


def stop(state: State) -> str:
    """Return the command that stops this history with a savepoint, and no other history of its job."""
    return command("stop", *_names(state), state=state)


def _names(state: State) -> list[str]:
    """Return the arguments that name this history, and no other one of its job."""
    return [Name(state.job), *([Name(state.scope)] if state.scope else []), *item_option(state)]


def suspension(state: State) -> str:
    """Return since when a job is suspended, by whom and with which savepoint. Any other text in the journal is returned as it is."""
    at, _, who = (state.suspended or "").partition(" (")
    by, _, savepoint = who.removesuffix(")").partition(", ")
    if not is_time(at):
        return f"by {state.suspended}"
    since = datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    return f"since {since} by {by}" + (f", with savepoint {savepoint}" if savepoint else "")


def nearest(word: str, words: Iterable[str]) -> str:
    """Return a sentence that names the word that was perhaps meant; empty if none is like it. That is never ``word`` itself."""
    found = difflib.get_close_matches(word, [other for other in words if other != word], n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def rewound(sink: str, *options: str) -> str:
    """Return the command that lists the files that were taken out of a file sink; with an option, puts them back or deletes them."""
    return command("rewound", Name(sink), *options)


ANOTHER_HISTORY = (
    "its history was deleted since, and another one has begun in its place and counts its ids anew. Nothing was changed. Run the task again"
    " that made the checkpoint, or name one of the history of now"
)


def list_of(job: str, state: State | None = None) -> str:
    """Return the command that lists the checkpoints of a job. ``state``: of one history of that job."""
    return command("list", *(_names(state) if state else [Name(job)]), state=state)


def superseded(state: State, run: str, launch: Launch | None = None) -> str:
    """Say that a later try has taken over; ``launch`` is that of the later try, if it is known."""
    successor = f"try {launch.latest_try} of this run" if launch else "a later try of this run, or a restore,"
    return (
        f"{title(state, run)}: {successor} has taken over; this try ends, without retry."
        " If the DAG run was deleted and made again: give it another run id"
    )


def _allows(state: State | None, where: str) -> str:
    return f"`{restore(state, where, '--rewind-sink')}`, or RestoreOperator(rewind_sink=True)"


def _otherwise(state: State | None, unless: str = "") -> str:
    return (
        f"To keep them: `{restore(state, 'latest')}`{unless}. To have both: start another job_id from the checkpoint, and let it write to"
        " another path"
    )


def _unless_put_back(state: State | None, uid: str) -> str:
    """Return when the newest checkpoint does not fit a file sink: its query has gone back, and a person has put the rows back since.

    Only the sink tells that, which is not read here.
    """
    query = state.query(uid) if state else None
    if query is None or not query.newest.rewound:
        return ""
    return ", unless you have put rows back (`rewound --put-back`): that does not fit them, and is refused"


def rows_are_deleted(state: State, uid: str, batch: int, at: str, lost: Iterable[Gap]) -> str:
    """Say why a query cannot go back to ``batch``: at the time ``at``, Kafka no longer had the rows that it would read again."""
    return (
        f"query '{uid}': by its offsets at {at}, Kafka does not have all rows since batch {batch}: {', '.join(map(str, lost))}. Nothing was"
        f" changed. A newer checkpoint may still have all its rows: `{list_of(state.job, state)}` says which. To go back without these rows,"
        ' start the job once with .option("failOnDataLoss", "false") at the source, and restore then'
    )


def sink_is_ahead(uid: str, sink: str, saved: QueryDetail, state: State | None = None, where: str = "…") -> str:
    """Say why a query does not go back to ``saved``: its sink holds later batches. ``where`` is how a restore names that checkpoint."""
    if saved.sink in (DELTA, ICEBERG):
        return _table_is_ahead(uid, sink, saved, state, where)
    return (
        f"query '{uid}' cannot go back to batch {saved.batch}: its sink {sink} holds later batches. To move them out of it:"
        f" {_allows(state, where)}. {_otherwise(state, _unless_put_back(state, uid))}"
    )


def _table_is_ahead(uid: str, table: str, saved: QueryDetail, state: State | None, where: str) -> str:
    """Say why a query does not go back: its table holds later batches, which its author must remove."""
    why = f"query '{uid}' cannot go back to batch {saved.batch}: its table {table} holds later batches."
    taking_out = take_out(table, saved.newest_file)
    if taking_out is None:
        return f"{why} The table no longer says which commit wrote batch {saved.batch}. {_otherwise(state)}"
    return (
        f"{why} To remove them: stop the job, run {taking_out} (this also removes what others have written since), then"
        f" {_allows(state, where)}. {_otherwise(state)}"
    )


def restore_table(table: str, version: int) -> str:
    """Return the command that takes a Delta table to a version."""
    quoted = table.replace("`", "``")
    return f"RESTORE TABLE delta.`{quoted}` TO VERSION AS OF {version}"


def take_out(table: str, commit: str | None) -> str | None:
    """Return the command that takes a Delta or Iceberg table back to a commit; None if that is not known."""
    if (version := delta_version(commit)) is not None:
        return restore_table(table, version)
    if (snapshot := iceberg_number(commit)) is not None:
        catalog, _, name = table.partition(".")
        quoted = catalog if re.fullmatch(r"\w+", catalog) else f"`{catalog.replace('`', '``')}`"
        text = re.sub(r"([\\'])", r"\\\1", name)  # Spark reads '' as nothing, or as a quote
        return f"CALL {quoted}.system.rollback_to_snapshot('{text}', {snapshot})"
    return None


def upstream_went_back(state: State, uid: str, upstream: str) -> str:
    """Say that a query has not gone back with the query whose files it reads."""
    return (
        f"query '{uid}' cannot continue: query '{upstream}', whose files it reads, has gone back since '{uid}' ran, and writes rows again that"
        f" '{uid}' has read. Nothing was changed. Give '{uid}' another uid and an empty path, so that it begins anew. Or go back to a checkpoint"
        f" that holds both: `{list_of(state.job, state)}` says which"
    )


def cannot_be_rewound(uid: str, why: str, state: State | None = None) -> str:
    """Say that a query cannot go back, whatever is allowed, and what can be done instead."""
    return (
        f"query '{uid}' cannot go back: {why}. To let it continue: `{restore(state, 'latest')}`. Or start another job_id from the"
        " checkpoint, and let it write to another path"
    )


def cannot_begin_anew(uid: str, state: State) -> str:
    """Say that a query that runs cannot begin anew under its name, and how it can under another."""
    return (
        f"query '{uid}' runs, and cannot begin anew: it has written batches, and no batch number may be used twice. Nothing was changed. To"
        f" begin anew under another name: `{stop(state)}`, give the query another uid"
        " and an empty path in the script, and repeat this restore. Or start another job_id"
    )


BEGINS_ANEW = "it has written batches, the checkpoint holds no batch of it, and no batch number may be used twice"
OWN_FUNCTION = "its foreachBatch may have written later batches, which only that function knows. A batch_sink says which it has written"
