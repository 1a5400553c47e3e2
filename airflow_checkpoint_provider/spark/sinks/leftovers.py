"""What other attempts have prepared in a target and nobody has ended. Runs in the Spark driver.

The next driver with the sink cleans up, of any run: an attempt that is over will never commit what no completed checkpoint holds. The
abort is an entry of the target, so a driver that only slept finds it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection

from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.keys import HISTORY
from airflow_checkpoint_provider.protocol.transactions import transaction_epoch
from airflow_checkpoint_provider.sinks.log import RunOfSink, below_root, same_history
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.sinks.base import OpenSink
from airflow_checkpoint_provider.storage.base import Store
from airflow_checkpoint_provider.text import sink_messages

MOST_HISTORIES = 50  # at one start; the next start takes the rest


def abort_leftovers(attempt: Attempt, by: RunOfSink, opened: OpenSink, carried: Collection[str]) -> None:
    """Abort the transactions in a target that nobody will commit. ``carried`` are those that this attempt, the run ``by``, goes on with.

    Those of completed checkpoints stay, and a line names them.
    """
    uid, useless, by_history = by.uid, list[str](), defaultdict[tuple[str, str], list[str]](list)
    for left in opened.leftovers():
        if not same_history(left, by):
            by_history[left.history, left.incarnation].append(left.name)
        elif left.name not in carried and transaction_epoch(left.name) < attempt.epoch:
            useless.append(left.name)
    for (history, incarnation), names in sorted(by_history.items())[:MOST_HISTORIES]:
        try:
            over, due = _of_other_run(attempt.store, history, incarnation, names)
        except CheckpointError as error:
            say(sink_messages.leftovers_unknown(uid, history, len(names), error))
            continue
        # Not what is carried: this job may have started from a savepoint of that one
        useless += [name for name in over if name not in carried]
        if due:
            say(sink_messages.commit_is_due(uid, history, len(due)))
    if useless:
        opened.abort(useless)
        say(sink_messages.leftovers_aborted(uid, len(useless)))


def _of_other_run(store: Store, history: str, incarnation: str, names: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which transactions of another history will never be committed, and which a completed checkpoint holds."""
    # Its root may have another URI since: then only the incarnation tells that it is the same
    prefix = below_root(history) if incarnation else history.removeprefix(f"{store.uri}/")
    if not re.fullmatch(HISTORY, prefix):
        return [], []  # of a job with other checkpoints: only its own driver knows
    coordinator = open_history(store, prefix)
    state = coordinator.journal.catch_up()
    if state.n < 0 or state.incarnation != (incarnation or state.incarnation):
        return [], []  # it was deleted, or another host has it, below a folder of the same name
    # A copy of the root does not know what its original has begun since
    known = [name for name in names if transaction_epoch(name) <= state.last_epoch]
    over = [name for name in known if state.over(transaction_epoch(name))]
    newest = state.newest_first()
    if not over or not newest:
        return over, []
    states = coordinator.read_seal(newest[0]).states.values()
    held = {transaction.name for saved in states if saved.sink for transaction in saved.sink.transactions}
    return [name for name in over if name not in held], [name for name in over if name in held]
