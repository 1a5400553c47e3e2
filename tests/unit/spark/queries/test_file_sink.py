"""A file sink whose log has a gap: a query neither goes on there nor goes back. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.file_sink.log import LOG
from airflow_checkpoint_provider.location.files import NOTHING, Position
from airflow_checkpoint_provider.storage import MemoryStore, Store
from tests.support.sinks import FOLDER, folder_in, saved_at, sink_in, write_batch


def goes_on(store: Store, committed: int) -> None:
    sink_in(store).check_can_continue(Position(committed, committed), {folder_in(store).uri})


def emptied(*batches: int, compacted: int = NOTHING) -> Store:
    """Return a store with a sink of which only these entries are left."""
    store = MemoryStore()
    for batch in batches:
        write_batch(store, batch, compacts=("{}",) if batch == compacted else ())
    return store


@pytest.mark.parametrize(
    ("batches", "compacted", "lacks"),
    [
        ((416, 417, 418), NOTHING, 0),
        ((9, 10, 12), 9, 11),
        ((0, 2), NOTHING, 1),
        ((21,), NOTHING, 0),
    ],
    ids=["emptied while the query ran", "after a compacted entry", "in the middle", "all but the newest"],
)
def test_gap_in_the_log_is_found_before_the_query_goes_on(batches: tuple[int, ...], compacted: int, lacks: int) -> None:
    store = emptied(*batches, compacted=compacted)
    says = rf"query 'rows': .*/{FOLDER}/{LOG}/{lacks} is missing.*Nothing was started. Put back .* or write to an empty"
    with pytest.raises(Damaged, match=says):
        goes_on(store, batches[-1])
    with pytest.raises(Damaged, match=says):
        sink_in(store).plan_rewind(saved_at(store, batches[0], None), allowed=True)


def test_entries_that_no_reader_needs_may_be_gone() -> None:
    """Spark deletes those before a compacted one."""
    goes_on(emptied(19, 20, 21, compacted=19), 21)
    goes_on(emptied(0, 1, 2), 2)
