"""The verb for the files that queries took out of a file sink when they went back. Runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_checkpoint_provider.cli import locate
from airflow_checkpoint_provider.cli.change import DRY_RUN, Approval, confirm, entry_author
from airflow_checkpoint_provider.cli.output import Report
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, open_history
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.liveness import Liveness
from airflow_checkpoint_provider.coordinator.releasing import refuse_living
from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged, InvalidConfig, JobAlreadyRunning, StoreError
from airflow_checkpoint_provider.file_sink import rewinding
from airflow_checkpoint_provider.file_sink.log import FileSinkLog, SinkFile
from airflow_checkpoint_provider.file_sink.rewinding import Aside
from airflow_checkpoint_provider.file_sink.store_folder import StoreFolder
from airflow_checkpoint_provider.location.files import location_at
from airflow_checkpoint_provider.protocol import queries, wording
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text.units import plural, size, some

REWOUND = ("FOLDER", "JOB", "QUERY", "TAKEN OUT", "BACK TO BATCH", "FILES", "BYTES")


@dataclass(frozen=True)
class RewoundSink:
    """A file sink, and the folders of files that were taken out of it, the newest first. ``store`` holds the histories of the jobs that
    write there.
    """

    store: Store
    folder: StoreFolder
    asides: Sequence[Aside]

    @classmethod
    def at(cls, store: Store, uri: str) -> RewoundSink:
        """Return the sink at ``uri``. Raises ``WrongUse`` for a sink that cannot be reached like ``store``, and ``Damaged``."""
        folder = StoreFolder(location_at(store, uri, what="a file sink"))
        return cls(store, folder, rewinding.all_aside(folder))

    def named(self, name: str | None) -> Sequence[Aside]:
        """Return the folder of that name, or all. Raises ``CheckpointNotFound`` if there is none."""
        found = [aside for aside in self.asides if name in (None, aside.name)]
        if not found:
            raise CheckpointNotFound(
                f"no query that went back took {name} out of {self.folder.uri}" if name else self.nothing_taken
            )
        return found

    @property
    def nothing_taken(self) -> str:
        """Say that nothing was taken out, and whether the path may be wrong."""
        empty = self.folder.is_empty()
        why = ". It does not exist, or is empty: write the path to which the query writes" if empty else ""
        return f"no query that went back took anything out of {self.folder.uri}{why}"

    def jobs_at_rest(self, asides: Sequence[Aside]) -> list[Coordinator]:
        """Return the coordinators of the jobs that wrote there. Raises ``JobAlreadyRunning``, or ``CheckpointNotFound`` for a job that is not
        below this root: nobody could tell whether it runs.
        """
        wrote = {(aside.manifest.job, aside.manifest.item) for aside in asides}
        return [
            _at_rest(self.store, job, item) for job, item in sorted(wrote, key=lambda each: (each[0], each[1] or ""))
        ]


def rewound(store: Store, uri: str, name: str | None, approval: Approval, *, back: bool, delete: bool) -> Report:
    """List the files that queries took out of the file sink at ``uri``; put them ``back``, or ``delete`` them."""
    if back and delete:
        raise InvalidConfig("--put-back and --delete cannot be given together. Choose one")
    sink = RewoundSink.at(store, uri)
    if not (back or delete):
        unknown = rewinding.without_manifest(sink.folder, sink.asides)
        notes = [
            f"{uri}/{name} has no manifest, so nobody can say what it holds. Look at it, and move or delete it by hand"
            for name in unknown
        ]
        return replace(_report(sink.asides), notes=notes or ([] if sink.asides else [sink.nothing_taken]))
    found = sink.named(name)
    if back:
        found = [rewinding.to_put_back(found)]  # older folders can be put back after it
    jobs = sink.jobs_at_rest(found)
    lines = [_line(aside, sink, back=back) for aside in found]
    afterwards = _check(sink, found, jobs, back=back)
    if approval.dry_run:
        return _report(found, [*lines, *afterwards, DRY_RUN])
    confirm(found[0].manifest.job, [*lines, *afterwards], approval)
    jobs = sink.jobs_at_rest(found)  # once more: a person may have thought for long
    done = _put_back(sink, found[0], jobs[0]) if back else _delete(sink, found, jobs)
    return _report(found, [*(lines if approval.yes else []), done, *afterwards])


def _at_rest(store: Store, job: str, item: str | None) -> Coordinator:
    coordinator = open_history(store, History(job, item=item).prefix, entry_author())
    state = coordinator.journal.catch_up()
    if state.n < 0:
        raise locate.no_job(store, job, f"the job {job!r}, which writes there, has no history under {store.uri}")
    undone = "nothing was changed in its sink"
    if running := queries.runs(state, undone):
        raise running
    refuse_living(coordinator, Liveness(store), undone)
    return coordinator


def _line(aside: Aside, sink: RewoundSink, *, back: bool) -> str:
    manifest = aside.manifest
    what = f"{plural(len(manifest.files), 'file')} ({size(manifest.bytes)}) in {sink.folder.uri}/{aside.name}"
    if back:
        return (
            f"PUT BACK {what}: {sink.folder.uri} holds the same files again as before query '{manifest.uid}' of {manifest.job} went back to"
            f" batch {manifest.batch}; files that were written since are moved aside"
        )
    return f"DELETE {what}, for ever"


def _put_back(sink: RewoundSink, aside: Aside, job: Coordinator) -> str:
    epoch, log = job.state.last_epoch, FileSinkLog(sink.folder)
    taken = rewinding.put_back(log, aside, entry_author().owner, utc_now(), lambda: _refuse_started(job, epoch))
    _refuse_started(job, epoch)
    others = rewinding.forget(log, aside)
    if not others:
        sink.folder.delete_under(aside.name)
    since = f"; files that were written since are in {taken.name}" if taken else ""
    since += f"; {plural(len(others), 'file')} in {aside.name} that no manifest names stay there" if others else ""
    return f"done: {sink.folder.uri} holds the rows again{since}"


def _check(sink: RewoundSink, found: Sequence[Aside], jobs: Sequence[Coordinator], *, back: bool) -> list[str]:
    """Raise what the command would raise before it changes anything. Return what a person has to do after it."""
    log, before = FileSinkLog(sink.folder), list[str]()
    if back:
        return [_afterwards(log, found[0], jobs[0])]
    for aside in reversed(found):  # in the order of their deletion
        rewinding.check_remove(log, aside, before)
        before.append(aside.name)
    return []


def _afterwards(log: FileSinkLog, aside: Aside, job: Coordinator) -> str:
    """Say which checkpoint fits the rows when they are put back. Without it, the next start is refused, also from the newest checkpoint.

    Raises what ``rewinding.put_back`` raises before it changes anything.
    """
    name, fitting = aside.manifest.job, _fitting(job, rewinding.check_put_back(log, aside))
    if not fitting:
        return (
            f"before you start {name}: no checkpoint that is still there fits the rows, so query '{aside.manifest.uid}' would be refused"
            " (CKP401). --put-back once more takes them out again. To go on after them, start another job_id that writes to another path"
        )
    (newest, batch), others = fitting[0], dict.fromkeys(f"chk-{checkpoint.id}" for checkpoint, _ in fitting[1:])
    command = wording.restore(job.state, f"chk-{newest.id}", "--rewind-sink")
    also = f". Older ones that fit: {some([*others])}" if others else ""
    return (
        f"before you start {name}: `{command}`. chk-{newest.id} is the newest checkpoint that fits the rows. What came after its batch"
        f" {batch} is moved aside again, and written once more{also}"
    )


def _fitting(job: Coordinator, files: Sequence[SinkFile]) -> list[tuple[Checkpoint, int]]:
    """Return the checkpoints, each with its batch, at which the newest file of the sink was one of ``files``; that with most files first."""
    place, found = {file.path: number for number, file in enumerate(files)}, list[tuple[int, Checkpoint, int]]()
    for checkpoint in job.state.retained:
        with suppress(Damaged, StoreError):  # nobody can restore one that cannot be read
            queries_of = (snapshot.query for snapshot in job.contents(checkpoint)[0].states.values())
            found += [
                (place[query.newest_file], checkpoint, query.batch)
                for query in queries_of
                if query and query.newest_file in place
            ]
    found.sort(key=lambda each: (each[0], each[1].id), reverse=True)
    return [(checkpoint, batch) for _, checkpoint, batch in found]


def _delete(sink: RewoundSink, found: Sequence[Aside], jobs: Sequence[Coordinator]) -> str:
    epochs = [job.state.last_epoch for job in jobs]
    log = FileSinkLog(sink.folder)
    for aside in reversed(found):  # the oldest first: it may need files of a newer one
        rewinding.remove(log, aside)
        sink.folder.delete_under(aside.name)
    for job, epoch in zip(jobs, epochs, strict=True):
        _refuse_started(job, epoch)
    return "done"


def _refuse_started(job: Coordinator, epoch: int) -> None:
    """Raise ``JobAlreadyRunning`` if the job was started meanwhile: a query may have found a half-changed sink."""
    state = job.journal.catch_up()
    if state.last_epoch != epoch:
        raise JobAlreadyRunning(
            f"{state.job} was started while its sink was changed. Stop it, and type the same command again before you start it"
        )


def _report(asides: Sequence[Aside], lines: list[str] | None = None) -> Report:
    data = [
        {
            "folder": aside.name,
            "job": aside.manifest.job,
            "query": aside.manifest.uid,
            "at": aside.manifest.at,
            "batch": aside.manifest.batch,
            "files": len(aside.manifest.files),
            "bytes": aside.manifest.bytes,
        }
        for aside in asides
    ]
    return Report(REWOUND, [tuple(map(str, row.values())) for row in data], data, lines)
