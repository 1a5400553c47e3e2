"""Mistakes about sinks, each as a small patch of the real code. Runs anywhere. As ``bugs``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from airflow_checkpoint_provider.protocol import sink_transitions
from airflow_checkpoint_provider.protocol.transactions import SinkDetail
from airflow_checkpoint_provider.sinks import published_files
from airflow_checkpoint_provider.sinks.log import COMMIT, CommitLog, Contents, LogEntry
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles, is_hidden
from airflow_checkpoint_provider.sinks.staging import StagingFolder
from airflow_checkpoint_provider.spark.sinks import leftovers
from airflow_checkpoint_provider.spark.sinks.files import OpenFileSink
from airflow_checkpoint_provider.spark.sinks.sink_state import SinkState
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from tests.model import publishers
from tests.model.bugs import Bug, replaced
from tests.model.publishers import Job
from tests.model.targets import Bucket

# -- the log of the target ---------------------------------------------------------------------------------------------


def no_entry_of_an_abort(self: PublishedFiles, names: Collection[str], base: int) -> tuple[str, ...]:
    self.log.read()
    committed = tuple(name for name in names if self.log.entry_of(name, base))
    self._delete_staged(name for name in names if name not in committed)
    return committed


def only_commits_count(self: CommitLog, name: str, base: int) -> tuple[int, LogEntry] | None:
    found = ENTRY_OF(self, name, base)
    return found if found and found[1].kind == COMMIT else None


def no_order_of_runs(self: Contents, entry: LogEntry) -> Contents:
    return replace(AFTER(self, entry), overwritten_by=0)


def hurried(self: PublishedFiles, *arguments: Any) -> LogEntry | None:
    with patch.object(PublishedFiles, "_end_publication", lambda self, number: None):
        return COMMIT_OF(self, *arguments)


def what_is_found(self: PublishedFiles, number: int) -> None:
    END(self, number)
    if number and (entry := self.log.entry(number)).removed:
        kept = {file.name for file in entry.added}
        found = [file.key for file in self.store.list("") if not is_hidden(file.key)]
        self.store.delete(name for name in found if name not in kept)


def taken_out_in_silence(self: PublishedFiles, names: Collection[str]) -> None:
    gone = [one for one in self.log.read().commits if set(one.transactions) & set(names)]
    self.store.delete(file.name for one in gone for file in one.added)


def taken_out_first(self: PublishedFiles, names: Collection[str]) -> None:
    taken_out_in_silence(self, names)
    TAKE_OUT(self, names)


def old_ones_first(self: PublishedFiles, number: int) -> None:
    if number:
        self.store.delete(self.log.entry(number).removed)
    END(self, number)


def only_those_with_a_record(self: StagingFolder[Any]) -> tuple[Any, ...]:
    with patch.object(StagingFolder, "delete", lambda self, names: None):
        return LEFTOVERS(self)


ENTRY_OF, AFTER, TAKE_OUT = CommitLog.entry_of, Contents.after, PublishedFiles.take_out
COMMIT_OF, END, LEFTOVERS = PublishedFiles._commit_of, PublishedFiles._end_publication, StagingFolder.leftovers

LOG = {
    "23": Bug("an abort that is not final", replaced(PublishedFiles, "abort", no_entry_of_an_abort), "a_committer_and_an_aborter", ("S4", "S5")),
    "45": Bug("what is taken out is not recorded", replaced(PublishedFiles, "take_out", taken_out_in_silence), "a_driver_that_goes_back", ("S2",)),
    "47": Bug("… or after it is done", replaced(PublishedFiles, "take_out", taken_out_first), "a_driver_that_goes_back", ("S2",)),
    "48": Bug(
        "what is found goes, not what the entry names", replaced(PublishedFiles, "_end_publication", what_is_found),
        "a_driver_that_goes_back", ("S2",),
    ),
    "A": Bug("a commit looks for commits alone", replaced(CommitLog, "entry_of", only_commits_count), "a_committer_and_an_aborter", ("S1", "S4")),
    "B": Bug("an overwrite of yesterday", replaced(Contents, "after", no_order_of_runs), "an_overwrite_of_tomorrow", ("S3",), walks=100),
    "C": Bug("the entry before is not ended", replaced(PublishedFiles, "_commit_of", hurried), "appends_one_after_the_other", ("S2", "S4")),
    "D": Bug(
        "staged rows stay", replaced(PublishedFiles, "_delete_staged", lambda self, names: None),
        "an_overwrite_of_tomorrow", ("S2", "S4", "S7"), walks=10,
    ),
    "E": Bug(
        "names of files are used twice", replaced(published_files, "published_name", lambda transaction, staged: staged),
        "an_overwrite_of_tomorrow", ("S2",), walks=10,
    ),
    "F": Bug("the old rows go first", replaced(PublishedFiles, "_end_publication", old_ones_first), "an_overwrite_of_tomorrow", ("S2",)),
    "G": Bug(
        "rows without a record stay", replaced(StagingFolder, "leftovers", only_those_with_a_record),
        "a_committer_and_an_aborter_in_a_bucket", ("S7",), walks=100,
    ),
    "H": Bug(
        "uploads are not ended", replaced(Bucket, "end_uploads", lambda self, keys: None),
        "an_overwrite_of_tomorrow_in_a_bucket", ("S2",),
    ),
}  # fmt: skip


# -- drivers -----------------------------------------------------------------------------------------------------------


def aborts_what_an_aborted_one_held(self: Job, kept: bytes) -> bytes:
    """A driver that sees an aborted checkpoint aborts the transactions which it named."""
    _, state = self._opened(kept)
    journal = self.coordinator.journal.catch_up()
    known = {one.id for one in (*journal.retained, *journal.pending)}
    if journal.next_id > 1 and 1 not in known:
        state.opened.abort([made.name for made in state.uncommitted() if made.write == 0])
    return COMMIT_STEP(self, kept)


def only_the_newest(self: SinkState) -> SinkDetail:
    detail = DETAIL(self)
    return replace(detail, transactions=detail.transactions[-1:])


def named_by_its_carrier(self: Sinks, *arguments: Any) -> SinkDetail:
    detail = RESTORED(self, *arguments)
    epoch = self._attempt.epoch
    renamed = (replace(made, name=f"{epoch}-{made.name.partition('-')[2]}") for made in detail.transactions)
    return replace(detail, transactions=tuple(renamed))


@contextmanager
def goes_back_first() -> Iterator[None]:
    """Before the transactions that a driver which sleeps may still commit are aborted."""

    def committed(self: Sinks, state: SinkState) -> None:
        COMMIT_RESTORED(self, state)
        restored = self._restored(state.uid, state.sink)
        GO_BACK(self, state, restored.version, {made.name for made in state.transactions})

    with ExitStack() as stack:
        stack.enter_context(patch.object(Sinks, "_commit_restored", committed))
        stack.enter_context(patch.object(Sinks, "_go_back", lambda *arguments: None))
        yield


def newest_of_any_branch(self: Sinks, uid: str) -> int:
    return self._attempt.journal.state.sink(uid).version


COMMIT_STEP, DETAIL = Job.commit, SinkState.detail
RESTORED, COMMIT_RESTORED, GO_BACK = Sinks._restored, Sinks._commit_restored, Sinks._go_back

DRIVERS = {
    "20": Bug(
        "an aborted checkpoint aborts its transactions",
        lambda: patch.dict(publishers.STEPS, {"commit": aborts_what_an_aborted_one_held}),
        "a_checkpoint_that_somebody_completes", ("S7",), walks=100,
    ),
    "21": Bug(
        "a later checkpoint does not carry on", replaced(SinkState, "detail", only_the_newest),
        "a_checkpoint_that_somebody_completes", ("S6", "S7"), walks=10,
    ),
    "22": Bug(
        "committed before the entry", replaced(Sinks, "due_version", lambda self, state: state.version),
        "a_checkpoint_that_somebody_completes", ("S6",), walks=10,
    ),
    "31": Bug("committed under the name of its carrier", replaced(Sinks, "_restored", named_by_its_carrier), "a_sink_and_its_retry", ("S6",)),
    "39": Bug("goes back before the zombie is harmless", goes_back_first, "a_job_that_goes_back", ("S7",)),
    "40": Bug("the abort hits what a successor made", replaced(leftovers, "transaction_epoch", lambda name: 0), "a_zombie_that_opens_late", ("S7",)),
    "46": Bug(
        "a gated sink publishes without a gate",
        replaced(sink_transitions, "_publishes", lambda checkpoint, held: held.transactions > 0), "an_audit_of_rows", ("S6",),
    ),
    "I": Bug(
        "what another branch has confirmed counts", replaced(Sinks, "_confirmed", newest_of_any_branch),
        "a_job_that_goes_back_and_forth", ("S7",), walks=10,
    ),
    "J": Bug(
        "rows that were taken out count as committed", replaced(OpenFileSink, "taken_out", lambda self, transactions: ()),
        "rows_that_were_taken_out", ("S7",), walks=10,
    ),
    "L": Bug(
        "a write that another pass has replaced counts as committed", replaced(SinkState, "replaced", lambda self, standing: ()),
        "a_write_that_a_later_pass_replaced", ("S7",), walks=10,
    ),
    "K": Bug(
        "a write that was aborted waits for its gate", replaced(SinkState, "_aborted", lambda self: ()),
        "a_gate_of_another_branch", ("S7", "P10"), walks=10,
    ),
}  # fmt: skip

BUGS: dict[str, Bug] = LOG | DRIVERS
