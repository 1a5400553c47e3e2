"""A sink that forgets which batches it has. Runs anywhere."""

from __future__ import annotations

import json

import pytest

from airflow_checkpoint_provider.coordinator.query_location import Location, Position
from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.spark.queries.links import InFlight
from airflow_checkpoint_provider.spark.queries.sink import CLOCKS, CountingSink
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.storage.memory import MemoryStore

BEGAN = 1_800_000_000.0  # seconds since 1970
PATH = "lake.rows"


class Forgetful(CountingSink):
    """A sink that remembers the batches since a moment, and has none of them."""

    path = PATH

    def __init__(self, since: float | None) -> None:
        super().__init__("rows", Target("table", PATH))
        self.told: list[int] = []
        self._since = since
        self.location = Location(MemoryStore(), "rows")
        about = {"batchWatermarkMs": 0, "batchTimestampMs": int(BEGAN * 1000)}
        self.location.store.overwrite(self.location.name("offsets/5"), f"v1\n{json.dumps(about)}\n-".encode())

    def newest_batch(self) -> int:
        return -1

    def is_empty(self) -> bool:
        return False

    def remembers_since(self) -> float | None:
        return self._since

    def fill_up(self, behind: int, in_flight: InFlight | None = None) -> None:
        self.told.append(behind)


@pytest.mark.parametrize(
    ("begun", "since"),
    [
        pytest.param(4, BEGAN + 1000, id="no batch had begun"),
        pytest.param(5, BEGAN - CLOCKS - 1, id="the begun batch is newer than what was forgotten"),
    ],
)
def test_sink_that_has_forgotten_its_batches_is_told(begun: int, since: float) -> None:
    sink = Forgetful(since)
    sink.meet(Position(begun, 4), {PATH})
    assert sink.told == [4]


@pytest.mark.parametrize("since", [BEGAN - CLOCKS, BEGAN + 1])
def test_batch_that_may_have_been_forgotten_is_refused(since: float) -> None:
    sink = Forgetful(since)
    with pytest.raises(SinkMoved, match="nobody can tell whether it has the rows of that batch"):
        sink.meet(Position(5, 4), {PATH})
    assert sink.told == []


@pytest.mark.parametrize(
    ("since", "known"),
    [
        pytest.param(None, {PATH}, id="the sink forgets nothing"),
        pytest.param(BEGAN, {"lake.others"}, id="the query has not written there"),
    ],
)
def test_sink_that_lacks_batches_is_refused(since: float | None, known: set[str | None]) -> None:
    sink = Forgetful(since)
    with pytest.raises(SinkMoved, match="it would lack 5 of them"):
        sink.meet(Position(4, 4), known)
    assert sink.told == []
