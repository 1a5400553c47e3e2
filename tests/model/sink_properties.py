"""What must hold of a target, at each moment and in the end, and of the checkpoints that its rows belong to. Runs anywhere.

S1  A transaction is committed or aborted, never both, and at most once.
S2  Whoever lists the target finds the files of the entries whose publication has ended; of the newest entry, perhaps, some new ones,
    and when an old one is gone, all new ones. So no row of a transaction that is not committed is ever seen.
S3  An overwrite of a run does not come after one of a run that began later.
S4  What an actor was told is true ever after: committed, aborted, taken out. A reader of the log misses no file.
S5  Rows that are staged stay until their transaction has an entry.
S6  A transaction is committed only if a completed checkpoint holds it, one of a gated sink only if a gated one holds it (P6).
S7  If the store answers and one driver keeps trying, nothing stays staged, and the rows are those of one undisturbed run. They are so
    whenever a driver ends well.

The entries are read here without a line of the package's log, so that a mistake there is not a mistake here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from airflow_checkpoint_provider.protocol.metadata import Seal
from tests.model.actors import KEYS
from tests.model.explore import Claim, Disk
from tests.model.properties import Properties
from tests.model.targets import TARGET

OUTCOMES = {"committed": "commit", "entered": "commit", "aborted": "abort"}
STAGED = f"{TARGET}/_checkpoint-staging/"


@dataclass(frozen=True)
class Told:
    """What an entry of the log says."""

    kind: str
    transactions: tuple[str, ...]
    added: frozenset[str]
    removed: frozenset[str]
    began: int
    overwrite: bool


@cache
def told(body: bytes) -> Told:
    data: dict[str, Any] = json.loads(body)
    return Told(
        kind=data["kind"],
        transactions=tuple(data.get("transactions", ())),
        added=frozenset(file["name"] for file in data.get("added", ())),
        removed=frozenset(data.get("removed", ())),
        began=data.get("began", 0),
        overwrite=data.get("overwrite", False),
    )


class Log:
    """The entries of a target, and its files."""

    def __init__(self, disk: Disk) -> None:
        self.entries: list[Told] = []
        while body := disk.first.get(f"{TARGET}/_checkpoints/{len(self.entries) + 1:020d}"):
            self.entries.append(told(body))
        below = [key.removeprefix(f"{TARGET}/") for key in disk.objects if key.startswith(f"{TARGET}/")]
        self.visible = frozenset(key for key in below if not key.startswith("_"))
        self.staged = frozenset(
            key.removeprefix(STAGED).partition("/")[0] for key in disk.objects if key.startswith(STAGED)
        )

    def outcome(self, name: str) -> str:
        return next((one.kind for one in self.entries if name in one.transactions), "")

    def contents(self, n: int) -> frozenset[str]:
        """Return the files after ``n`` entries."""
        files = frozenset[str]()
        for entry in self.entries[:n]:
            files = (files - entry.removed) | entry.added
        return files

    def ended(self) -> bool:
        """Return whether the publication of the newest entry has ended for sure."""
        newest = self.entries[-1]
        return newest.kind in ("begin", "abort") or (
            newest.kind == "commit" and not self.staged & set(newest.transactions)
        )


class TargetRules:
    """Judges worlds of one target. ``rows``: what stands there in the end, in one of these ways."""

    def __init__(self, *rows: frozenset[str]) -> None:
        self._rows = rows

    def world(self, disk: Disk, claims: frozenset[Claim]) -> str | None:
        return next(self._breaches(disk, Log(disk), claims), None)

    def _breaches(self, disk: Disk, log: Log, claims: frozenset[Claim]) -> Iterator[str]:
        yield from _outcomes(log)
        yield from _files(log)
        for key in disk.gone:
            if key.startswith(STAGED) and not log.outcome(name := key.removeprefix(STAGED).partition("/")[0]):
                yield f"S5: rows of {name} were deleted before it was committed or aborted"
        for claim in claims:
            match claim.what:
                case ("committed" | "entered" | "aborted" as how, str(name)) if log.outcome(name) != OUTCOMES[how]:
                    yield f"S4: {name} was told to be {how}, and is not"
        yield from _kept(log, claims)

    def claim(self, disk: Disk, claim: Claim) -> str | None:
        match claim.what:
            case ("ended", str(error), str(words)) if error in ("Damaged", "FormatTooNew"):
                return f"S4: {error}: {words}"
            case ("misses", str(name)):
                return f"S4: a reader misses {name}"
        return None

    def settled(self, disk: Disk) -> str | None:
        log = Log(disk)
        if log.staged:
            return f"S7: {min(log.staged)} stays staged"
        if log.visible != log.contents(len(log.entries)):
            return f"S7: {sorted(log.visible)} are there, and the log says otherwise"
        return self.unlike(disk)

    def unlike(self, disk: Disk) -> str | None:
        """Return how the rows differ from those of one undisturbed run."""
        rows = sorted(disk.objects[f"{TARGET}/{name}"].decode() for name in Log(disk).visible)
        if self._rows and (frozenset(rows) not in self._rows or len(set(rows)) != len(rows)):
            return f"S7: the rows are {rows}"
        return None


def _outcomes(log: Log) -> Iterator[str]:
    seen, latest = set[str](), 0
    for number, entry in enumerate(log.entries, 1):
        for name in entry.transactions:
            if name in seen:
                yield f"S1: entry {number} is another one of {name}"
            seen.add(name)
        if entry.overwrite:
            if entry.began < latest:
                yield f"S3: entry {number} overwrites what a run wrote that began later"
            latest = max(latest, entry.began)


def _files(log: Log) -> Iterator[str]:
    n = len(log.entries)
    if not n:
        return
    newest, before, after = log.entries[-1], log.contents(n - 1), log.contents(n)
    if more := log.visible - before - newest.added:
        yield f"S2: {min(more)} is seen, and no entry says so"
    if less := (before & after) - log.visible:
        yield f"S2: {min(less)} is committed, and gone"
    if newest.removed - log.visible and newest.added - log.visible:
        yield "S2: neither the old rows nor the new ones are there"
    if log.ended() and log.visible != after:
        yield f"S2: the publication of entry {n} has ended, and {sorted(log.visible)} are seen"


def _kept(log: Log, claims: frozenset[Claim]) -> Iterator[str]:
    """Yield the claims that an end of a publication contradicts."""
    n = len(log.entries)
    for claim in claims:
        if claim.what[0] == "committed" and n:
            newest = log.entries[-1]
            if claim.what[1] in newest.transactions and log.visible != log.contents(n):
                yield f"S4: {claim.what[1]} was told to be committed, and is not published"
        if claim.what[0] == "taken out" and any(file.startswith(f"{claim.what[1]}-") for file in log.visible):
            yield f"S4: {claim.what[1]} was told to be taken out, and is seen"


class PublisherRules(TargetRules):
    """Judges besides the history of the job that writes to the target."""

    def __init__(self, *rows: frozenset[str]) -> None:
        super().__init__(*rows)
        self._history = Properties(KEYS)

    def world(self, disk: Disk, claims: frozenset[Claim]) -> str | None:
        return self._history.world(disk, claims) or next(self._too_early(disk), None) or super().world(disk, claims)

    def claim(self, disk: Disk, claim: Claim) -> str | None:
        match claim.what:
            case ("ended", "SinkMoved" | "RowsStand" as error, str(words)):
                return f"S7: {error}: {words}"
            case ("ended well",):
                return self.unlike(disk)
        return self._history.claim(disk, claim) or super().claim(disk, claim)

    def _too_early(self, disk: Disk) -> Iterator[str]:
        completed = {n: found for n, found in self._history.history(disk).checkpoints.items() if found.completed}
        published = set[str]()
        for number, found in completed.items():
            for name, gated in _held(disk.first[KEYS.seal(number)]):
                if found.gated or not gated:
                    published.add(name)
        for entry in Log(disk).entries:
            if entry.kind == "commit" and not published & set(entry.transactions):
                yield f"S6: {entry.transactions[0]} is committed, and no checkpoint that publishes it is completed"


@cache
def _held(seal: bytes) -> tuple[tuple[str, bool], ...]:
    """Return the transactions of a checkpoint, and whether their sink is gated."""
    sinks = [state.sink for state in Seal.from_bytes(seal).states.values() if state.sink]
    return tuple((made.name, sink.gated) for sink in sinks for made in sink.transactions)
