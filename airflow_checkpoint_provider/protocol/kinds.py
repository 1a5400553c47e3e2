"""The kinds of checkpoints and what each may do, and the reasons for which they fail: Flink's tables. Runs anywhere.

Each id counts once among the failures, because an id has one outcome; a newer success starts the count again. Reasons that are
not in ``COUNTED`` do not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_checkpoint_provider.errors import InvalidConfig

# Origins of a request: the driver's timer, and a barrier of the driver; any other origin is a user
PERIODIC, BARRIER = "periodic", "barrier"


@dataclass(frozen=True)
class Kind:
    """A row of the table of kinds.

    ``savepoint``: lies at a target of its own, shares no file, is never subsumed and never deleted by a policy. It is triggered however
    many checkpoints are pending, as Flink forces savepoints where barriers are aligned. ``full``: writes every state again, though later
    checkpoints may refer to it. ``suspends``: the job does not start again until somebody resumes it. ``drains``: streaming queries first
    read all rows that have arrived.
    """

    name: str
    savepoint: bool = False
    full: bool = False
    suspends: bool = False
    drains: bool = False

    @property
    def subsumes(self) -> bool:
        """Return whether its completion aborts older pending checkpoints. A plain savepoint does not belong to their sequence."""
        return not self.savepoint or self.suspends

    @property
    def words(self) -> str:
        """Return its name for people: one for all savepoints, because another word says that the job was stopped."""
        return "savepoint" if self.savepoint else self.name.replace("_", " ")


CHECKPOINT = Kind("checkpoint")
FULL_CHECKPOINT = Kind("full_checkpoint", full=True)
SAVEPOINT = Kind("savepoint", savepoint=True, full=True)
SUSPEND_SAVEPOINT = Kind("suspend_savepoint", savepoint=True, full=True, suspends=True)
TERMINATE_SAVEPOINT = Kind("terminate_savepoint", savepoint=True, full=True, suspends=True, drains=True)

KINDS = {kind.name: kind for kind in (CHECKPOINT, FULL_CHECKPOINT, SAVEPOINT, SUSPEND_SAVEPOINT, TERMINATE_SAVEPOINT)}


def kind_named(name: str) -> Kind:
    """Return the kind of that name. Raises ``InvalidConfig``."""
    if name not in KINDS:
        raise InvalidConfig(f"kind={name!r}: write one of {', '.join(map(repr, KINDS))}")
    return KINDS[name]


def is_savepoint(name: str) -> bool:
    return kind_named(name).savepoint


# -- aborts ------------------------------------------------------------------------------------------------------------

# Reasons. A task that aborts a checkpoint says its own
EXPIRED = "expired"
DECLINED = "declined"
STORE_FAILED = "store failed"  # an I/O error, or sealing failed
TOO_LARGE = "too large"
LOST = "driver lost"  # by the observation of a waiting task; the driver may only be slow, so this does not count
SUBSUMED = "subsumed"  # a newer checkpoint holds the same states
REPLACED = "attempt replaced"
RESTORED = "restore"

COUNTED = frozenset({EXPIRED, DECLINED, STORE_FAILED, TOO_LARGE})

# Phases: what the checkpoint waited for
ACKNOWLEDGE, FINALIZE, SEAL, COMPLETE = "acknowledge", "finalize", "seal", "complete"


def counts_as_failure(reason: str, *, savepoint: bool) -> bool:
    """Return whether an aborted checkpoint counts as failed. A savepoint that expired does not: it is copied as a whole."""
    return reason in COUNTED and not (savepoint and reason == EXPIRED)
