"""The properties P1 to P12 of the protocol, written out in one place. Runs anywhere.

P1  A checkpoint has at most one outcome, and every reader sees the same.
P2  Checkpoint ids, epochs, launches and branches rise and are never used twice, also when a history is closed and opened again.
    Ids are above the id of a base from elsewhere.
P3  After an entry that ends or replaces an attempt, no entry of the attempt is accepted, and no checkpoint of it completes.
    Nothing is planned, started or triggered while the job is suspended. The completion of a stop-savepoint suspends the job.
P4  A completed checkpoint's seal exists, and has the digest of its entry. It consists of exactly one acknowledgement per
    application of its plan. It holds every state of the point that its attempt restored, except states that
    ``allow_non_restored_state`` drops; the models drop none.
P5  The restore point of the current branch is whole, until a newer one is completed or the run of a run-scoped history has
    finished or failed for good.
P6  A sink commits only what completed: ``sink_properties``. *That of a streaming query commits batch by batch.*
P7  The state that a process believes is the true history. An answer "done" or "not done" is true.
P8  A savepoint at its target is complete, or has no ``_metadata`` or a stub. Only its owner or claimer deletes it; only one
    claims it. It is never subsumed, and no policy condemns it.
P9  An attempt starts from the restore point that the state had at its own entry. This point is not condemned before the
    attempt's first own completion. Its file sets are not deleted before the attempt gives them up or is over.
P10 If the store answers and one actor keeps trying, every pending checkpoint gets its outcome, and a launch gets to its end.
    Launches and drivers do not replace each other for ever. A request is served in its turn by the entry that makes room, and
    by no earlier entry; otherwise the entry that ends its attempt drops it. A published savepoint is recorded as published.
P11 A step that is done twice leaves the same state as once, and gives the same answer.
P12 No file set is deleted while a checkpoint or an attempt refers to it. The file sets of a forgotten checkpoint are deleted,
    at the latest when its attempt is over. Before that, only the living attempt itself deletes file sets that it wrote or
    restored, after it has given them up.

``history`` reports a property that a single entry breaks. This module reports those that the store, a belief or an answer
breaks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Any

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.coordinator.savepoint_target import DISPOSAL
from airflow_checkpoint_provider.coordinator.savepoint_target import ClaimLock as Lock
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.keys import SEGMENT, Keys, SavepointPointer, file_set_epoch
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, Seal, digest
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import fold
from tests.model.explore import Claim, Disk
from tests.model.history import Checkpoint, History


class Properties:
    """Judges worlds of one history, and of another that may claim its savepoints. ``seen``: every actor in them observes that
    the launch and the driver before are alive."""

    def __init__(self, keys: Keys, seen: bool = False, segment: int = SEGMENT, other: Keys | None = None) -> None:
        self._keys, self._segment = keys, segment
        self._other = Properties(other, segment=segment) if other else None
        self._tails: dict[tuple[int, bytes], int] = {}
        self._numbered: dict[Disk, dict[int, int]] = {}
        self._entry_key = cache(keys.entry)
        self._truth: list[tuple[History, State]] = [(History(seen=seen), State())]  # by number; 0 is before entry 0

    # -- the history -----------------------------------------------------------------------------------------------

    def _numbers(self, disk: Disk) -> dict[int, int]:
        """Return for each entry of the history the number in ``_truth`` of the state after it; for -1, the number of the empty state."""
        if disk not in self._numbered:  # a disk never changes, and is asked for with each claim
            self._numbered[disk] = self._read(disk)
        return self._numbered[disk]

    def _read(self, disk: Disk) -> dict[int, int]:
        numbers, n = {-1: 0}, -1
        while (entry := self._next(disk, n)) is not None:
            step = (numbers[n], disk.first[self._entry_key(entry.n)])
            if step not in self._tails:
                history, state = self._truth[numbers[n]]
                self._tails[step] = len(self._truth)
                self._truth.append((history.then(entry), fold(state, entry.n, entry.at, entry.events)))
            n = entry.n
            numbers[n] = self._tails[step]
        return numbers

    def _next(self, disk: Disk, n: int) -> Entry | None:
        """Return the entry after ``n``: the next number, or, if that was never written, *closed* at the next boundary."""
        for number in (n + 1, (n // self._segment + 1) * self._segment):
            if (body := disk.first.get(self._entry_key(number))) is not None:
                entry = Entry.from_bytes(body, "an entry")
                return entry if number == n + 1 or isinstance(entry.events[0], e.HistoryClosed) else None
        return None

    def _last(self, disk: Disk) -> tuple[History, State]:
        numbers = self._numbers(disk)
        return self._truth[numbers[max(numbers)]]

    def history(self, disk: Disk) -> History:
        return self._last(disk)[0]

    # -- the store -------------------------------------------------------------------------------------------------

    def world(self, disk: Disk, claims: frozenset[Claim]) -> str | None:
        history = self.history(disk)
        if history.wrong:
            return history.wrong
        entries = sum(key.startswith(f"{self._keys.prefix}/journal/") for key in disk.first)
        if entries != history.entries:
            return "P7: a number of the journal was left out"
        released = {claim.what[1:] for claim in claims if claim.what[0] == "released"}
        broken = next(self._breaches(disk, history, released), None) or next(self._lies(history, claims), None)
        if broken or self._other is None:
            return broken
        other = self._other.world(disk, frozenset())
        return other and f"{other}, in the other history"

    def _breaches(self, disk: Disk, history: History, released: Collection[tuple[Any, ...]]) -> Iterator[str]:
        """Yield the errors in the store. ``released``: epoch and path of the file sets that an attempt itself has given up."""
        for number, checkpoint in history.checkpoints.items():
            if checkpoint.status == "retained":
                yield from self._torn(disk, number, checkpoint.digest, checkpoint.plan)
                for path in checkpoint.paths:
                    if not self._stands(disk, path):
                        yield f"P5, P12: {path}, which chk-{number} refers to, was deleted"
            if checkpoint.target:
                yield from self._at_target(disk, number, checkpoint)
            if (
                checkpoint.status == "forgotten"
                and not checkpoint.savepoint
                and self._keys.seal(number) not in disk.gone
            ):
                yield f"P12: chk-{number} was forgotten before it was deleted"
        yield from self._restore_point(disk, history)
        for epoch in history.living():
            for path in history.attempts[epoch].holds:
                if not self._stands(disk, path) and (epoch, path) not in released:
                    yield f"P9, P12: {path}, which attempt {epoch} restored, was deleted"
        for key in disk.gone:
            deleted = self._file_set_of(key)
            epoch = file_set_epoch(deleted) if deleted else 0
            if deleted and not history.over(epoch) and (epoch, deleted) not in released:
                yield f"P12: {deleted} was deleted while its attempt lives"

    def _restore_point(self, disk: Disk, history: History) -> Iterator[str]:
        point = history.restore_point()
        if isinstance(point, int):
            found = history.checkpoints[point]
            if found.status != "retained" and not history.run_ended():
                yield f"P5: the restore point chk-{point} is {found.status}"
            if found.target and found.status == "retained" and not _whole(disk, found):
                yield f"P5: the restore point chk-{point} is not whole at its target"
        if isinstance(point, str) and point in history.claims and not history.run_ended():
            if history.claims[point] != "retained":
                yield f"P5: the restore point {point} is {history.claims[point]}"
            if _metadata(disk, point) in ("", "stub"):
                yield f"P5: the restore point {point} was disposed of by somebody else"

    def _at_target(self, disk: Disk, number: int, one: Checkpoint) -> Iterator[str]:
        """Yield the breaches of P8 by one savepoint."""
        assert one.target
        there, name = _metadata(disk, one.target), SavepointPointer.parse(one.target).name
        if there and there != "stub":
            if not one.completed or there != one.digest:
                yield f"P8: chk-{number} is {one.status}, and its target holds a savepoint"
            if not _whole(disk, one):
                yield f"P8: savepoint chk-{number} is not whole at its target"
        if one.published and not there:
            yield f"P8: savepoint chk-{number} was said to be published, and is not"
        lock = SavepointPointer.parse(one.target).claim
        if one.status in ("condemned", "forgotten") and lock not in disk.first:
            yield f"P8: savepoint chk-{number} was condemned by nobody who owns it"
        if disk.objects.get(lock) != disk.first.get(lock):
            yield f"P8: the lock of savepoint chk-{number} was changed"
        if one.completed and (there == "stub" or _below(disk.gone, f"{name}/")) and not self._may_delete(disk, one):
            yield f"P8: savepoint chk-{number} was deleted by somebody else than its claimer"

    def _may_delete(self, disk: Disk, one: Checkpoint) -> bool:
        """Return whether the owner of the savepoint's lock has recorded in its journal that it deletes the savepoint."""
        assert one.target
        lock = disk.objects.get(SavepointPointer.parse(one.target).claim)
        if lock is None:
            return False
        if _owner(lock) == DISPOSAL:
            return one.status in ("condemned", "forgotten", "alone")
        return self._other is not None and self._other.history(disk).claims.get(one.target) != "retained"

    def _torn(self, disk: Disk, number: int, sealed: str, plan: tuple[str, ...]) -> Iterator[str]:
        body = disk.objects.get(self._keys.seal(number))
        if body is None:
            yield f"P4: chk-{number} has no seal"
            return
        if _digest(body) != sealed:
            yield f"P4: the seal of chk-{number} is not the one of its entry"
        words = {application: disk.objects.get(self._keys.acknowledgement(number, application)) for application in plan}
        if _sealed(body) != {
            application: _acknowledged(word) for application, word in words.items() if word is not None
        }:
            yield f"P4: the seal of chk-{number} is not what was acknowledged"
        if set(_sealed(body)) != set(plan):
            yield f"P4: chk-{number} was completed without all acknowledgements of its plan"

    def _stands(self, disk: Disk, path: str) -> bool:
        return any(key.startswith(f"{self._keys.file_set(path)}/") for key in disk.objects)

    def _file_set_of(self, key: str) -> str | None:
        parts = key.removeprefix(f"{self._keys.prefix}/").split("/")
        return "/".join(parts[:3]) if parts[0] == "state" else None

    # -- answers to actors -----------------------------------------------------------------------------------------

    def claim(self, disk: Disk, claim: Claim) -> str | None:
        numbers = self._numbers(disk)
        history = self._truth[numbers[max(numbers)]][0]
        match claim.what:
            case ("believes", State() as state):
                if state.n not in numbers:
                    return f"P7: believes entry {state.n}, which the history has not"
                if self._truth[numbers[state.n]][1] != state:
                    return f"P7: believes at entry {state.n} what is not the history"
            case ("completed" | "aborted" as how, int(number)):
                status = history.checkpoints[number].status if number in history.checkpoints else "unknown"
                if (status in ("retained", "condemned", "forgotten")) != (how == "completed") or status == "pending":
                    return f"P7: chk-{number} was told to be {how} and is {status}"
            case ("triggered", str(request), int(number)):
                if history.requests.get(request, (0, 0))[0] != number:
                    return f"P11: request {request} was answered chk-{number}, the history says {history.requests.get(request)}"
            case ("started", int(epoch), str(driver)):
                if epoch not in history.attempts or history.attempts[epoch].driver != driver:
                    return f"P7: {driver} was told that it started, and did not"
            case ("planned", tuple(token)):
                if token not in history.tokens:
                    return f"P7: {token} was told that it is planned, and is not"
        return None

    def _lies(self, history: History, claims: frozenset[Claim]) -> Iterator[str]:
        for claim in claims:
            match claim.what:
                case ("not triggered", str(request)) if request in history.requests:
                    yield f"P7: request {request} was told 'not done', and is in the history"
                case ("not planned", tuple(token)) if token in history.tokens:
                    yield f"P7: {token} was told 'not done', and is in the history"

    # -- in the end ------------------------------------------------------------------------------------------------

    def settled(self, disk: Disk) -> str | None:
        """Return what is left over after one actor alone has done all its steps: launch, checkpoints, end, retiring, sweep."""
        history = self.history(disk)
        if pending := history.with_status("pending"):
            return f"P10: chk-{min(pending)} never gets its outcome"
        if history.living() or not history.finished:
            return "P10: no run gets to its end"
        if late := [
            number
            for number, checkpoint in history.with_status("retained").items()
            if checkpoint.target and not checkpoint.published
        ]:
            return f"P10: savepoint chk-{late[0]} is never published"
        kept = {path for checkpoint in history.with_status("retained").values() for path in checkpoint.paths}
        for key in disk.objects:
            if (path := self._file_set_of(key)) and path not in kept:
                return f"P12: {path} is nobody's and stays for ever"
            folder = key.removeprefix(f"{self._keys.prefix}/").split("/")[0]
            if folder.startswith("chk-") and int(folder[4:]) not in history.with_status("retained"):
                return f"P12: {folder} is nobody's and stays for ever"
        return None


def _metadata(disk: Disk, pointer: str) -> str:
    """Return the content of a savepoint's directory: the digest of its seal, "stub", or "" for nothing."""
    body = disk.objects.get(SavepointPointer.parse(pointer).metadata)
    return "" if body is None else "stub" if _is_stub(body) else _digest(body)


def _whole(disk: Disk, one: Checkpoint) -> bool:
    """Return whether a savepoint's files are at its target. Its seal lies there or, before it is published, in its history."""
    assert one.target
    name = SavepointPointer.parse(one.target).name
    return _metadata(disk, one.target) != "stub" and all(
        _below(disk.objects, f"{name}/{path}/") for path in one.file_sets
    )


def _below(keys: Iterable[str], folder: str) -> bool:
    return any(key.startswith(folder) for key in keys)


@cache
def _is_stub(body: bytes) -> bool:
    return "stub" in json.loads(body)


@cache
def _owner(body: bytes) -> str:
    return Lock.from_json(json.loads(body)).owner


@cache
def _digest(body: bytes) -> str:
    return digest(body)


@cache
def _sealed(body: bytes) -> dict[str, Acknowledgement]:
    return Seal.from_bytes(body).applications


@cache
def _acknowledged(body: bytes) -> Acknowledgement:
    return Acknowledgement.from_bytes(body)
