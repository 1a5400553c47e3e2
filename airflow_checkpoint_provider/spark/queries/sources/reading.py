"""Where a query reads on, and which of these rows a source lacks. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_checkpoint_provider.location.fence import newest_batch
from airflow_checkpoint_provider.location.files import NO_OFFSET, NOTHING, Location, Position
from airflow_checkpoint_provider.text.units import some

NEWER = " A newer checkpoint may still have all its rows."


@dataclass(frozen=True)
class Reading:
    """A query that reads on after ``position`` of its location ``own``.

    ``batch`` is the number that its newest committed batch had before it went back. ``left`` are the locations whose batches it reads
    again, because it has gone back from there. ``restored``: its position is that of a checkpoint.
    """

    own: Location
    position: Position
    batch: int
    left: tuple[Location, ...] = ()
    restored: bool = False

    @property
    def again(self) -> bool:
        """Return whether it reads rows that it has read before."""
        return bool(self.left) or self.position.begun != self.position.committed

    def begins(self, source: int) -> str | None:
        """Return the offset of a source after which it reads on; None if it begins. Raises ``Damaged``."""
        return offset_of(self.own, self.position.committed, source)

    def ends(self, source: int) -> list[str]:
        """Return the offsets of a source up to which it reads rows again. Raises ``Damaged``."""
        newest = ((self.own, self.position.begun), *((place, newest_batch(place)[0]) for place in self.left))
        found = (offset_of(place, batch, source) for place, batch in newest)
        return [offset for offset in found if offset is not None]


def offset_of(location: Location, batch: int, source: int) -> str | None:
    """Return the offset of a source at the end of a batch; None if it was not read by then. Raises ``Damaged``."""
    offset = location.offsets(batch).sources.get(source, NO_OFFSET) if batch != NOTHING else NO_OFFSET
    return None if offset == NO_OFFSET else offset


@dataclass(frozen=True)
class Loss:
    """The rows that a query reads next and that the source ``where`` lacks. ``missing`` names them, and ``counted`` says how many they are.

    ``remedy`` says what the author may do. ``allowed`` is the option because of which Spark leaves these rows out; empty if none is set.
    """

    where: str
    missing: Sequence[object]
    remedy: str
    allowed: str = ""
    counted: str = ""

    def since(self, batch: int) -> str:
        """Return the text about lost rows that came after ``batch``."""
        since = "" if batch == NOTHING else f" since batch {batch}"
        left_out = f". Spark skips them, because {self.allowed}" if self.allowed else ""
        return f"{self.where} does not have all rows{since}: {self.counted}{some([str(each) for each in self.missing])}{left_out}"
