"""The effects of a restore by hand, for its log or its confirmation. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from airflow_checkpoint_provider.coordinator.restore import Restored
from airflow_checkpoint_provider.coordinator.restore_target import GoingBack
from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.location.restored_files import ReadAgain
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, Retention
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.query_details import DELTA, FILE_SINKS, ICEBERG
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transactions import SinkRecord
from airflow_checkpoint_provider.protocol.wording import rewound, suspension, take_out, title
from airflow_checkpoint_provider.text.units import day_and_time, fitting, headline, labelled, plural, sealed, size, some

CODES = {"CKP104": "A restore set the checkpoint from which the next attempt starts. Running attempts are fenced."}


def restored(
    state: State,
    restored: Restored,
    *,
    claim: bool = False,
    rename: Mapping[str, str] | None = None,
    rewind_sink: bool = False,
    back: Iterable[GoingBack] = (),
    again: Iterable[ReadAgain] = (),
) -> list[str]:
    """Return the effects of a restore by hand. ``state`` is the state before it, ``restored`` the verified restore point, ``back`` the
    queries that go back, ``again`` the files that they read again.
    """
    base = restored.point
    chosen = restored.chosen
    history = title(state, state.runs[-1].key) if state.scope and state.runs else title(state)
    lines = [
        headline(f"RESTORE {history}: the next attempt starts from {base or 'nothing'}", "CKP104"),
        *([labelled("verified", _content(chosen.checkpoint, chosen.files))] if chosen else []),
    ]
    if running := [f"attempt {attempt.epoch}" for attempt in state.living()]:
        lines.append(labelled("fenced", f"{some(running)}; its later writes are refused"))
    if beyond := _abandoned(state, base):
        lines.append(labelled("abandoned", _what_becomes_of(beyond, state.config.retention)))
    if state.suspended:
        lines.append(labelled("lifted", f"the suspension {suspension(state)}"))
    lines += _of_savepoint(restored, claim=claim)
    lines += [labelled("goes back", _query_goes_back(query)) for query in back]
    lines += [_sink_is_ahead(sink, rewind=rewind_sink) for sink in _sinks_ahead(state, restored, rename or {})]
    lines += [labelled("missing", text) for text in _taken_out(state, restored)]
    lines += [labelled("renamed", f"'{old}' is now called '{new}'") for old, new in (rename or {}).items()]
    return [*lines, *(line for query in again for line in _read_again(query))]


def _of_savepoint(restored: Restored, *, claim: bool) -> Iterator[str]:
    """Yield what becomes of a restored savepoint, and what the next start must name."""
    if claim:
        yield labelled(
            "claimed", "the savepoint belongs to this job, which deletes it when its retention no longer keeps it"
        )
    if restored.outside:
        named = f"unless its script or task has restore={str(restored.point)!r}"
        text = f"it lies outside of the root and of savepoint_roots. So the next start is refused (CKP409), {named}"
        yield labelled("to name", text)


def _query_goes_back(query: GoingBack) -> str:
    """Say what happens to the rows that a query has written after the restore point. Its driver does it, when the query starts."""
    saved = query.saved
    if saved.sink in FILE_SINKS:
        effect = (
            f"The files of later batches in {saved.path} are moved aside; `{rewound(saved.path)}` lists them and can put them back. Their rows are"
            " written again to new files: a stream of another job that has read them there reads them twice"
        )
    elif saved.sink in (DELTA, ICEBERG):
        command = take_out(saved.path, saved.newest_file)
        by = f" with {command}" if command else ""
        effect = f"Its table {saved.path} is not changed: take it back yourself{by}, or the query is refused (CKP401)"
    else:
        effect = f"Its sink, {saved.sink}, keeps the rows of later batches, and gets them a second time"
    return f"query '{query.uid}', to batch {saved.batch}. {effect}"


def _sink_is_ahead(sink: SinkRecord, *, rewind: bool) -> str:
    """Return the line for a sink of ``job.sink`` in which later runs may have written. Only its driver can ask the target."""
    rows = f"sink '{sink.uid}': rows that later runs have committed to {sink.target}"
    if rewind:
        effect = "are deleted for good when the script opens the sink, if it can tell them from others. To keep them, copy them first"
        return labelled("deletes", f"{rows} {effect}")
    effect = "If there are any, the driver refuses to open the sink (CKP401), late if the script opens it late"
    return labelled("may refuse", f"{rows} stay. {effect}. With --rewind-sink it deletes them")


def _sinks_ahead(state: State, restored: Restored, rename: Mapping[str, str]) -> list[SinkRecord]:
    """Return the sinks whose newest transaction is younger than the restore point, as the driver counts them.

    A run that starts again replaces its own rows. The numbers of ``job.txn``, whose target is their name, hold no rows.
    """
    entries = restored.chosen.checkpoint.states if restored.chosen else ()
    held = {rename.get(entry.uid, entry.uid): entry.sink.version for entry in entries if entry.sink}
    names = state.new_names(restored.point, rename)
    ahead = [sink for sink in state.sinks if sink.version > (_held(held, sink, names) or sink.closed)]
    return [sink for sink in ahead if sink.target != sink.uid and not _of_own_run(state, restored, sink)]


def _held(held: Mapping[str, int], sink: SinkRecord, names: Mapping[str, str]) -> int:
    """Return the version that the restore point holds of a sink, under any of its names."""
    found = held.get(names.get(sink.uid, sink.uid))
    return found if found is not None else max((held.get(name, 0) for name in sink.also), default=0)


def _of_own_run(state: State, restored: Restored, sink: SinkRecord) -> bool:
    """Return whether only the run that starts again has written since the restore point: the newest one, if it has not finished."""
    run, point = state.runs[-1] if state.runs else None, restored.point
    if state.of_one_run or run is None:
        return state.of_one_run
    within = point == run.started_from or (
        restored.chosen is not None
        and (point is None or point.pointer is None)
        and state.run_of(max(restored.chosen.checkpoint.epochs)) == run
    )
    return within and run.outcome != "finished" and sink.run == run.key


def _taken_out(state: State, restored: Restored) -> Iterator[str]:
    """Yield the sinks out of which rows were taken since that were written before the restore point."""
    if restored.point is None or restored.point.pointer or restored.chosen is None:
        return
    for entry in restored.chosen.checkpoint.states:
        record = state.sink(entry.uid)
        if entry.sink and entry.sink.transactions and record.rewound_after < entry.sink.version <= record.rewound:
            yield (
                f"sink '{entry.uid}': the job went back to before this checkpoint once. What runs wrote between may have been taken out of"
                f" {entry.sink.target}, and does not come back. A run that had not ended writes its rows again; look for those of the others"
            )


def _read_again(query: ReadAgain) -> Iterator[str]:
    """Yield the missing files that a query reads again, and whether some sources were not asked."""
    if query.gone:
        files = f"{len(query.gone)} of the {plural(query.asked, 'file')} that query '{query.uid}' reads again {fitting(len(query.gone), 'are')} gone"
        effect = "The query will be refused (CKP405), unless its source has ignoreMissingFiles=true"
        yield labelled("gone", f"{files}, as this host sees them: {some(query.gone)}. {effect}")
    if query.not_asked:
        text = f"whether the sources of query '{query.uid}' have all rows that it reads again. Its driver asks, before it changes the sink"
        yield labelled("not asked", text)


def _content(checkpoint: Checkpoint, files: int | None) -> str:
    held = f"{plural(len(checkpoint.states), 'state')}, {size(checkpoint.bytes)}"
    verdict = f", all {plural(files, 'file')} there, sizes match" if files else ""
    return f"{sealed(day_and_time(checkpoint.completed_at))}, {held}{verdict}"


def _abandoned(state: State, base: Point | None) -> list[Checkpoint]:
    """Return the checkpoints that are newer than the base, on whichever branch, in the order of their ids.

    A job that starts where it would have started anyway leaves none behind.
    """
    if base == state.restore_point():
        return []
    newest_first = state.newest_first()
    number = base.id if base and base.pointer is None else None
    newer = itertools.takewhile(lambda checkpoint: checkpoint.id != number, newest_first)
    return sorted(newer, key=lambda checkpoint: checkpoint.id)


def _what_becomes_of(abandoned: Sequence[Checkpoint], retention: Retention) -> str:
    """Say how long a person can still go to checkpoints that are not the newest any more: no policy deletes a savepoint."""
    text = f'{some([f"chk-{checkpoint.id}" for checkpoint in abandoned])}. "latest" no longer means them'
    deletable = [checkpoint for checkpoint in abandoned if not checkpoint.savepoint]
    if not deletable or isinstance(retention, KeepAll):
        return f"{text}. They stay listed, and can be restored by id"
    which = "They" if len(deletable) == len(abandoned) else "The savepoints stay. The others"
    until = "retention= deletes them"
    if isinstance(retention, KeepLatest):
        last = f"the last one after {plural(retention.count, 'newer checkpoint')}"
        until = f"retention=KeepLatest({retention.count}) deletes them, {last}"
    keep = "To keep them, set retention=KeepWithin(days=7) before the job starts"
    return f"{text}. {which} can be restored by id until {until}. {keep}"


def left_by_restore(state: State) -> str:
    """Say that a restore has replaced the launch of a task. The code comes with the error."""
    where = state.restore_point() or "nothing"
    return (
        f"{title(state)}: a restore at {day_and_time(state.branch.at)} ({state.branch.reason}) has replaced this launch. The next"
        f" try starts from {where}. If no retry is left, clear the task"
    )


def next_step(before: State) -> str:
    """Say what starts the next attempt: a restore by hand submits nothing. ``before`` is the state that it found."""
    launch = before.newest_launch
    if launch is None or not launch.spec.token.dag:
        return "Nothing was started: run the script"
    task = f"task {launch.spec.owner} of run {launch.spec.run}"
    if before.suspended:
        return printable(f"If {task} still waits, it starts the driver within a minute. If not, clear it")
    next_run = "" if before.of_one_run else ", or start the next run of its DAG"
    return printable(
        f"Nothing was submitted: the next retry of {task} starts there. If no retry is left, clear the task{next_run}"
    )
