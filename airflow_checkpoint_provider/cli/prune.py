"""The verb ``prune``: deletes what no retention policy keeps. Runs anywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_checkpoint_provider.cli import locate
from airflow_checkpoint_provider.cli.change import DRY_RUN, Approval, confirm, entry_author
from airflow_checkpoint_provider.cli.lists import MANY
from airflow_checkpoint_provider.cli.output import Report, with_items
from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.closing import collect_and_close
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, open_history
from airflow_checkpoint_provider.coordinator.garbage import Garbage
from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.errors import CheckpointError, StoreMisconfigured, as_checkpoint_error
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, CONDEMNED
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.protocol.lifetime import just_finished
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import title
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text.units import labelled, plural, size, some

PRUNED = ("JOB", "RUN", "CHECKPOINTS", "SAVEPOINTS", "LEFTOVERS", "HISTORY")
SHOWN = 20  # folders that are listed of one history


def prune(store: Store, job: str, run: str | None, approval: Approval, item: str | None = None) -> Report:
    """Delete checkpoints that no retention policy keeps, claimed savepoints included, and files that ended attempts left behind, of one run,
    of one item or of all. Closes histories that are over for good; leaves runs that finished less than a day ago, or whose driver is about
    to start, to their tasks.
    """
    all_of, _ = locate.find_all(store, job, run, MANY, item)
    found, errors = all_of.found, all_of.unreadable
    now = utc_now()
    planned, more_errors = _plans(store, found, now)
    seen, errors = [history for history in planned if history.garbage], (*errors, *more_errors)
    waiting = _waiting(store, seen)
    work = [history for history in seen if not history.young(now) and history.prefix not in waiting]
    notes = [history.spared(history.prefix in waiting) for history in seen if history not in work]
    lines = [line for history in work for line in history.lines] or ["nothing to delete"]
    rows, data = [history.row for history in work], [history.data for history in work]
    header, cells = with_items(PRUNED, rows, [history.item for history in work])
    if approval.dry_run or not work:
        return Report(header, cells, data, [*lines, DRY_RUN] if work else lines, notes, errors)
    confirm(job, lines, approval)
    for history in work:
        try:
            history.coordinator.journal.catch_up()
            if history.young(now):
                notes.append(history.spared())
                continue
            collect_and_close(history.coordinator, now)
        except Exception as error:  # noqa: BLE001 - an error of one file must not keep the other histories from being pruned
            errors = (*errors, as_checkpoint_error(error, history.prefix))
    return Report(header, cells, data, [*(lines if approval.yes else []), "done"], notes, errors)


def _plans(store: Store, found: Sequence[FoundHistory], now: str) -> tuple[list[_Planned], tuple[CheckpointError, ...]]:
    """Return the garbage of each history, and the errors of those whose garbage cannot be found out."""
    planned, errors = list[_Planned](), list[CheckpointError]()
    for history in found:
        try:
            planned.append(_planned(store, history, now))
        except Exception as error:  # noqa: BLE001 - an error in one history must not keep the others from being pruned
            known = as_checkpoint_error(error, "its garbage")
            errors.append(type(known)(f"{history.keys.prefix}: {known.message}"))
    return planned, tuple(errors)


def _waiting(store: Store, planned: Iterable[_Planned]) -> set[str]:
    """Return the prefixes of histories whose driver has not started yet, perhaps for days, while its task beats: it needs the restore point
    that nothing else keeps. A heartbeat that may not be read says nothing, so its history counts, too.
    """
    found = (FoundHistory(history.coordinator.keys, history.coordinator.state) for history in planned)
    starting = [history for history in found if history.state.starting()]
    return {history.keys.prefix for history in starting} - locate.not_beating(store, starting, lambda: None)


@dataclass(frozen=True)
class _Planned:
    """The garbage of one history. ``names`` are its job and its newest run; ``folders`` are keys or URIs with their bytes, the
    largest first."""

    names: tuple[str, str]
    coordinator: Coordinator
    garbage: Garbage
    folders: tuple[tuple[str, int], ...]

    def young(self, now: str) -> bool:
        return just_finished(self.coordinator.state, datetime.fromisoformat(now))

    def spared(self, waits: bool = False) -> str:
        why = "waits for its driver to start" if waits else "finished less than a day ago and is left to its task"
        return f"{self.title}: {why}. Prune it later"

    @property
    def item(self) -> str | None:
        return self.coordinator.state.item

    @property
    def title(self) -> str:
        return title(self.coordinator.state, self.names[1])

    @property
    def prefix(self) -> str:
        return self.coordinator.keys.prefix

    @property
    def checkpoints(self) -> list[str]:
        return [f"chk-{number}" for number in self.garbage.deletable.ids]

    @property
    def savepoints(self) -> list[str]:
        return list(self.garbage.deletable.claims)

    @property
    def line(self) -> str:
        held = f"{some(self.checkpoints)} (not retained)" if self.checkpoints else ""
        owned = f"{some(self.savepoints)} (claimed)" if self.savepoints else ""
        orphans = self.garbage.orphans
        left = f"{plural(len(orphans), 'leftover')} of ended attempts" if orphans else ""
        closed = "its history (closed)" if self.garbage.close else ""
        return f"{self.title}: {' and '.join(filter(None, (held, owned, left, closed)))}"

    @property
    def lines(self) -> list[str]:
        """Return the line of the history, and the folders that would be deleted: the largest ``SHOWN``, and the rest as one."""
        shown, others = self.folders[:SHOWN], self.folders[SHOWN:]
        lines = [self.line, *(labelled(size(count), folder) for folder, count in shown)]
        if others:
            lines.append(labelled(size(sum(count for _, count in others)), plural(len(others), "smaller folder")))
        return lines

    @property
    def row(self) -> tuple[str, ...]:
        counted = (str(len(names)) for names in (self.checkpoints, self.savepoints, self.garbage.orphans))
        return (*self.names, *counted, "closed" if self.garbage.close else "")

    @property
    def data(self) -> dict[str, object]:
        return {
            "job": self.names[0],
            "run": self.names[1],
            "item": self.item,
            "checkpoints": self.checkpoints,
            "savepoints": self.savepoints,
            "leftovers": [f"{self.prefix}/{folder}" for folder in self.garbage.orphans],
            "closed": self.garbage.close,
            "folders": [{"folder": folder, "bytes": count} for folder, count in self.folders],
            "bytes": sum(count for _, count in self.folders),
        }


def _planned(store: Store, found: FoundHistory, now: str) -> _Planned:
    coordinator = open_history(store, found.keys.prefix, entry_author())
    state = coordinator.journal.catch_up()
    due = garbage.plan(state, now, garbage.folders_of(store, found.keys))
    keys = [f"{found.keys.prefix}/{folder}" for folder in garbage.folders_to_delete(state, due, now)]
    sizes = [(key, _bytes_under(store, key)) for key in keys]
    targets = [(str(target), _bytes_at(store, target)) for target in _targets(state, due)]
    sizes += [target for target in targets if target[1]]  # most aborted savepoints left nothing
    largest_first = tuple(sorted(sizes, key=lambda sized: -sized[1]))
    return _Planned((found.state.job, found.newest_run), coordinator, due, largest_first)


def _targets(state: State, due: Garbage) -> Iterator[SavepointPointer]:
    """Yield the directories of savepoints whose files go: of claimed ones, and of those whose disposal or copy was interrupted."""
    yield from map(SavepointPointer.parse, due.deletable.claims)
    for checkpoint in state.checkpoints:
        if checkpoint.savepoint and checkpoint.status in (CONDEMNED, ABORTED):
            yield target_of(checkpoint)


def _bytes_at(home: Store, target: SavepointPointer) -> int:
    """Return the bytes of a savepoint's directory; 0 outside of the savepoint roots, where nothing is deleted."""
    with contextlib.suppress(StoreMisconfigured):
        return _bytes_under(home.beside(target.root, limited=False), target.name)
    return 0


def _bytes_under(store: Store, prefix: str) -> int:
    return sum(listed.size for listed in store.list(prefix))
