"""The kinds of checkpoints and what each may do, and the reasons for which they fail: Flink's tables. Runs anywhere.

Each id counts once among the failures, because an id has one outcome; a newer success begins the count anew. Any other reason,
as *subsumed* or *attempt replaced*, says nothing about whether checkpoints work.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_checkpoint_provider.errors import InvalidConfig


@dataclass(frozen=True)
class Kind:
    """One row of the table.

    ``savepoint``: self-contained at a target of its own, shares no file, is never subsumed and never deleted by a policy.
    ``full``: writes every state anew, though later ones may build on it. ``suspends``: the job does not start again before
    somebody resumes it. ``drains``: the data ends first.
    """

    name: str
    savepoint: bool = False
    full: bool = False
    suspends: bool = False
    drains: bool = False

    @property
    def forced(self) -> bool:
        """Triggered however many are pending. Flink forces savepoints where barriers are aligned; ours always are."""
        return self.savepoint

    @property
    def subsumes(self) -> bool:
        """Whether its completion ends older pending ones: a plain savepoint stands beside the sequence of checkpoints."""
        return not self.savepoint or self.suspends


CHECKPOINT = Kind("checkpoint")
FULL_CHECKPOINT = Kind("full_checkpoint", full=True)
SAVEPOINT = Kind("savepoint", savepoint=True, full=True)
SUSPEND_SAVEPOINT = Kind("suspend_savepoint", savepoint=True, full=True, suspends=True)
TERMINATE_SAVEPOINT = Kind("terminate_savepoint", savepoint=True, full=True, suspends=True, drains=True)

KINDS = {kind.name: kind for kind in (CHECKPOINT, FULL_CHECKPOINT, SAVEPOINT, SUSPEND_SAVEPOINT, TERMINATE_SAVEPOINT)}


def kind_named(name: str) -> Kind:
    """The kind of that name. Raises ``InvalidConfig``."""
    if name not in KINDS:
        raise InvalidConfig(f"kind={name!r}: write one of {', '.join(map(repr, KINDS))}")
    return KINDS[name]


def is_savepoint(name: str) -> bool:
    return kind_named(name).savepoint


# -- failures ----------------------------------------------------------------------------------------------------------

EXPIRED = "expired"
DECLINED = "declined"
STORE_FAILED = "store failed"  # an I/O error, or sealing failed
TOO_LARGE = "too many file sets"
LOST = "driver lost"  # as far as who waits for it can see; it may be asleep, so this counts against nobody

COUNTED = frozenset({EXPIRED, DECLINED, STORE_FAILED, TOO_LARGE})


def counts_as_failure(reason: str, *, savepoint: bool) -> bool:
    """A savepoint that took too long says nothing about checkpoints: it is copied as a whole."""
    return reason in COUNTED and not (savepoint and reason == EXPIRED)
