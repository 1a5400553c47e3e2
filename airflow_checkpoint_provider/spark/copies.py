"""Files that are copied: of a savepoint, of a full checkpoint, of what was restored from elsewhere. Runs in the Spark driver.

The copy of a group is a group of the attempt that copies it, and is verified by a listing before anybody refers to it.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from airflow_checkpoint_provider.coordinator.assignment import renamed_in
from airflow_checkpoint_provider.coordinator.files import verify_group
from airflow_checkpoint_provider.coordinator.savepoint import Pairs, imported
from airflow_checkpoint_provider.errors import CheckpointError, StoreError
from airflow_checkpoint_provider.protocol.failures import DECLINED, EXPIRED, STORE_FAILED
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import Seal, StateSnapshot
from airflow_checkpoint_provider.protocol.state import PENDING, Checkpoint
from airflow_checkpoint_provider.spark.attempt import Attempt
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.storage import Store, copy_all
from airflow_checkpoint_provider.text import messages

SAID_EVERY = 30.0  # seconds between two lines about one copy
Check = Callable[[], object]
"""Raises when the copy is not wanted any more; asked after each file."""


class Over(Exception):
    """What is copied for has its outcome, or the job ends: nobody wants the copy any more."""


class Late(Exception):
    """Its time is over."""


def still_wanted(attempt: Attempt, number: int, closing: threading.Event, deadline: float = math.inf) -> None:
    """Whether checkpoint ``number`` still waits for its copy, as far as the attempt's watch has seen. Raises ``Over``, and
    ``Late`` past the ``deadline``, which is one of ``time.monotonic``."""
    attempt.still_standing()
    found = attempt.state.checkpoint(number)
    if closing.is_set() or found is None or found.status != PENDING:
        raise Over
    if time.monotonic() > deadline:
        raise Late


def why_not(error: Exception, one: Checkpoint) -> tuple[str, str]:
    """Reason and words with which ``one`` is aborted that could not be copied."""
    if isinstance(error, Late):
        return EXPIRED, f"it was not copied within {one.timeout_s:g} s; give it a longer timeout"
    if isinstance(error, CheckpointError):
        return STORE_FAILED if isinstance(error, StoreError) else DECLINED, error.message
    return DECLINED, f"{type(error).__name__}: {error}"


def copy(what: str, source: Store, target: Store, pairs: Pairs, total: int, check: Check) -> None:
    """Copy ``total`` bytes, and say now and then how far that is. Raises what the stores and ``check`` raise."""
    done, said = 0, time.monotonic()

    def passed(_: str, size: int) -> None:
        nonlocal done, said
        check()
        done += size
        if time.monotonic() - said >= SAID_EVERY:
            said = time.monotonic()
            say(messages.copied(what, done, total))

    copy_all(source, target, pairs, passed)


def verify(store: Store, keys: Keys, states: Iterable[StateSnapshot]) -> None:
    """Raise ``Damaged`` unless all files are there and of their sizes."""
    for group in {group.path: group for state in states for group in state.groups}.values():
        verify_group(store, keys, group)


def anew(
    attempt: Attempt, what: str, states: Iterable[StateSnapshot], source: Store, keys: Keys, check: Check
) -> dict[str, StateSnapshot]:
    """The ``states``, whose groups lie at ``keys`` in ``source``, copied into the attempt's own history; by uid."""
    store, mine = attempt.coordinator.store, attempt.coordinator.keys
    both = [imported(state, keys, mine, attempt.epoch, lambda: secrets.token_hex(8)) for state in states]
    total = sum(state.bytes for state, _ in both)
    copy(what, source, store, tuple(pair for _, pairs in both for pair in pairs), total, check)
    found = {state.uid: state for state, _ in both}
    verify(store, mine, found.values())
    return found


def written_anew(
    attempt: Attempt, number: int, states: Iterable[StateSnapshot], check: Check
) -> tuple[StateSnapshot, ...]:
    """The states of a full checkpoint: it shares no file with an older one."""
    several = tuple(states)
    rows, coordinator = [one for one in several if one.groups], attempt.coordinator
    found = anew(attempt, f"chk-{number}", rows, coordinator.store, coordinator.keys, check)
    return tuple(found.get(one.uid, one) for one in several)


# -- what an attempt begins with -----------------------------------------------------------------------------------------


def renamed(attempt: Attempt) -> Seal | None:
    """What was restored; its states under the names that whoever went back to it gave them."""
    seal, branch = attempt.restored.seal, attempt.state.branch
    if seal is None or not branch.rename or attempt.restored.point != branch.base:
        return seal
    return renamed_in(seal, branch.rename, attempt.record.application)


def brought_in(attempt: Attempt, kept: Mapping[str, StateSnapshot]) -> dict[str, StateSnapshot]:
    """The restored states that are kept, in this history: what lies elsewhere is copied before the script runs."""
    restored, coordinator = attempt.restored, attempt.coordinator
    store, keys = restored.store, restored.keys
    if store is None or keys is None or (store.uri == coordinator.store.uri and keys == coordinator.keys):
        return dict(kept)
    files = sum(len(group.files) for state in kept.values() for group in state.groups)
    if files:
        say(messages.brought_in(str(restored.point), files, sum(state.bytes for state in kept.values())))
    with attempt.copying(str(restored.point)):
        return anew(attempt, str(restored.point), kept.values(), store, keys, attempt.still_standing)
