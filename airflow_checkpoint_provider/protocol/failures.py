"""Which failed checkpoints count against a job, by Flink's failure manager. Pure. Runs anywhere.

Each id counts once, because an id has one outcome; a newer success begins the count anew. Everything else, as a checkpoint that
was subsumed or whose attempt was replaced, says nothing about whether checkpoints work.
"""

from __future__ import annotations

EXPIRED = "expired"
DECLINED = "declined"
STORE_FAILED = "store failed"  # an I/O error, or sealing failed
TOO_LARGE = "too many file sets"
LOST = "driver lost"  # as far as who waits for it can see; it may be asleep, so this counts against nobody

COUNTED = frozenset({EXPIRED, DECLINED, STORE_FAILED, TOO_LARGE})


def counts_as_failure(reason: str, *, savepoint: bool) -> bool:
    """A savepoint that took too long says nothing about checkpoints: it is copied as a whole."""
    return reason in COUNTED and not (savepoint and reason == EXPIRED)
