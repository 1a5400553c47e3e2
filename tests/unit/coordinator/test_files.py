"""Files that a seal names are verified and copied, also below nested folders. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.coordinator.files import export_pairs, import_state, verify
from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import Keys, file_set_path
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.storage import MemoryStore
from airflow_checkpoint_provider.storage.copy import copy_all
from tests.support.acknowledgements import stage
from tests.support.faults import FaultyStore
from tests.support.footers import with_footers
from tests.support.parquet import flipped, parquet_file

HISTORY, OTHER, SAVEPOINT = Keys("jobs/orders/job"), Keys("jobs/flights/job"), Keys("savepoint-orders-1-ab")
NAMES = ("metadata", "offsets/7", "state/0/1/3.snapshot")


@pytest.fixture
def nested() -> StateSnapshot:
    """A state whose file set holds folders, as the location of a query does."""
    files = tuple(File(name=name, bytes=len(name), rows=0) for name in NAMES)
    return StateSnapshot(
        uid="orders",
        kind="query",
        run="day-1",
        file_sets=(FileSet(path=file_set_path("orders", 1, "n0nce"), files=files),),
    )


@pytest.fixture
def store(nested: StateSnapshot) -> MemoryStore:
    store = MemoryStore()
    for name in NAMES:
        store.create(f"{HISTORY.file_set(nested.file_sets[0].path)}/{name}", name.encode())
    return store


def test_files_in_nested_folders_are_verified(store: MemoryStore, nested: StateSnapshot) -> None:
    assert verify(store, HISTORY, [nested]) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_missing_file_in_a_nested_folder_is_named(store: MemoryStore, nested: StateSnapshot, name: str) -> None:
    store.delete([f"{HISTORY.file_set(nested.file_sets[0].path)}/{name}"])
    with pytest.raises(Damaged, match=f"{name} is missing"):
        verify(store, HISTORY, [nested])


def test_nested_folders_keep_their_names_in_a_savepoint(store: MemoryStore, nested: StateSnapshot) -> None:
    copy_all(store, store, export_pairs([nested], HISTORY, SAVEPOINT))
    assert verify(store, SAVEPOINT, [nested]) == len(NAMES)


def test_nested_folders_keep_their_names_in_another_history(store: MemoryStore, nested: StateSnapshot) -> None:
    imported, pairs = import_state(nested, HISTORY, OTHER, 3, lambda: "other")
    copy_all(store, store, pairs)
    assert verify(store, OTHER, [imported]) == len(NAMES)
    assert imported.file_sets[0] == replace(
        nested.file_sets[0], path=file_set_path("orders", 3, "other"), origin=nested.file_sets[0].identity
    )


# -- Parquet -------------------------------------------------------------------------------------------------------------

ROWS = 1000
BODY = parquet_file(ROWS)
FILES = 20


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def clean(faulty: FaultyStore) -> StateSnapshot:
    """A stage of Parquet files, with the checksums of their footers."""
    path = file_set_path("clean", 1, "n0nce")
    files = tuple(File(name=f"part-{number}.parquet", bytes=len(BODY), rows=ROWS) for number in range(FILES))
    for file in files:
        faulty.create(f"{HISTORY.file_set(path)}/{file.name}", BODY)
    return stage("clean", 1, made_of=FileSet(path=path, files=with_footers(faulty, HISTORY.file_set(path), files)))


def test_footers_cost_one_read_for_each_file(faulty: FaultyStore, clean: StateSnapshot) -> None:
    assert faulty.requests["read"] == FILES
    faulty.requests.clear()
    assert verify(faulty, HISTORY, [clean]) == FILES
    assert faulty.requests == {"list": 1, "read": FILES}


def test_flipped_footer_is_damaged(faulty: FaultyStore, clean: StateSnapshot) -> None:
    key = f"{HISTORY.file_set(clean.file_sets[0].path)}/part-7.parquet"
    faulty.overwrite(key, flipped(BODY, len(BODY) - 40))
    with pytest.raises(Damaged, match=r"state 'clean': .*part-7.parquet has another footer than was acknowledged"):
        verify(faulty, HISTORY, [clean])


def test_flipped_page_is_damaged_only_if_all_pages_are_read(faulty: FaultyStore, clean: StateSnapshot) -> None:
    key = f"{HISTORY.file_set(clean.file_sets[0].path)}/part-7.parquet"
    faulty.overwrite(key, flipped(BODY, 200))
    assert verify(faulty, HISTORY, [clean]) == FILES
    with pytest.raises(
        Damaged, match=r"state 'clean': .*part-7.parquet has a page at byte .* does not match its checksum"
    ):
        verify(faulty, HISTORY, [clean], deep=True)


def test_file_without_the_checksum_of_its_footer_is_verified_by_name_and_size(
    faulty: FaultyStore, clean: StateSnapshot
) -> None:
    (stored,) = clean.file_sets
    older = replace(
        clean, file_sets=(replace(stored, files=tuple(replace(file, footer=None) for file in stored.files)),)
    )
    faulty.requests.clear()
    assert verify(faulty, HISTORY, [older]) == FILES
    assert faulty.requests == {"list": 1}
    assert verify(faulty, HISTORY, [older], deep=True) == FILES
