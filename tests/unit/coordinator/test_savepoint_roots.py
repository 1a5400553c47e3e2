"""Savepoint roots of a connection: no word of a person and no journal leads out of them. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator import savepoint
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.restore import open_pointer, resolve
from airflow_checkpoint_provider.coordinator.savepoint_target import DISPOSAL, check_target, open_savepoint, put_claim
from airflow_checkpoint_provider.errors import CheckpointNotFound, SavepointDisposed, StoreMisconfigured
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.keys import SavepointPointer, pointer_of
from airflow_checkpoint_provider.storage import LocalStore, Store, open_store
from tests.support.acknowledgements import bystander, driver, take
from tests.support.garbage import remove_orphans, retire
from tests.support.histories import at
from tests.support.journals import KEYS
from tests.support.planted import STUB, append, planted
from tests.support.s3server import S3Server
from tests.unit.coordinator.savepoints import completed

OUTSIDE = "is not a place for savepoints"


def keys_in(place: Path) -> list[str]:
    return [listed.key for listed in LocalStore(place).list("")]


@pytest.fixture
def before(tmp_path: Path) -> SavepointPointer:
    """A published savepoint of the time before the connection had savepoint roots."""
    coordinator = driver(open_store(str(tmp_path / "ckp")))
    pointer = completed(coordinator, str(tmp_path / "other"))
    savepoint.publish_due(coordinator)
    take(coordinator)
    return pointer


@pytest.fixture
def limited(tmp_path: Path) -> Store:
    """The same store, whose connection has savepoint roots now."""
    return open_store(str(tmp_path / "ckp"), savepoint_roots=[str(tmp_path / "safe")])


# -- words of a person or an author ------------------------------------------------------------------------------------


def target(store: Store, place: Path) -> object:
    return check_target(store, str(place))


def request(store: Store, place: Path) -> object:
    return bystander(store).trigger(e.Request(token="mine", kind="savepoint", folder=str(place)))


def start_from_savepoint(store: Store, place: Path) -> object:
    return resolve(str(place / "savepoint-orders-1-n0nce"), bystander(store).state, store)


def start_from_checkpoint(store: Store, place: Path) -> object:
    return resolve(str(place / "jobs/orders/job/chk-1"), bystander(store).state, store)


def verify(store: Store, place: Path) -> object:
    return open_pointer(pointer_of(str(place / "mine")), store)


@pytest.mark.parametrize("use", [target, request, start_from_savepoint, start_from_checkpoint, verify])
def test_place_outside_of_the_savepoint_roots_is_refused_where_it_enters(
    use: Callable[[Store, Path], object], before: SavepointPointer, limited: Store, tmp_path: Path
) -> None:
    with pytest.raises(StoreMisconfigured, match=OUTSIDE):
        use(limited, tmp_path / "other")


def test_place_below_a_savepoint_root_is_a_target(limited: Store, tmp_path: Path) -> None:
    pointer = completed(driver(limited), check_target(limited, str(tmp_path / "safe/daily")))
    savepoint.publish_due(bystander(limited))
    assert resolve(str(pointer), bystander(limited).state, limited)


def test_savepoint_root_beside_s3_is_a_target_whatever_lies_above_it(tmp_path: Path) -> None:
    """Where no savepoint may lie, nobody looks for one in which the target lies."""
    home = open_store("s3://lake/ckp", savepoint_roots=[str(tmp_path / "shared/sp")])
    assert check_target(home, str(tmp_path / "shared/sp/daily")) == f"file://{tmp_path}/shared/sp/daily"


def test_pointer_outside_of_the_roots_does_not_tell_what_lies_there(tmp_path: Path) -> None:
    (tmp_path / "other/mine").mkdir(parents=True)
    (tmp_path / "other/mine/_metadata").write_text("{")
    stranger = open_store(str(tmp_path / "ckp"), savepoint_roots=[])
    with pytest.raises(StoreMisconfigured, match=OUTSIDE):
        savepoint.dispose(stranger, str(tmp_path / "other/mine"), "ann", at(1))


# -- the journal -------------------------------------------------------------------------------------------------------


def test_listed_savepoint_outside_of_the_roots_can_be_disposed_of(before: SavepointPointer, limited: Store) -> None:
    savepoint.dispose(limited, str(before), "ann", at(1))
    with pytest.raises(SavepointDisposed):
        open_savepoint(before, limited, limited=False)


def test_interrupted_disposal_outside_of_the_roots_is_finished(before: SavepointPointer, limited: Store) -> None:
    beside = limited.beside(before.root, limited=False)
    put_claim(beside, before, DISPOSAL, "ann", at(1))
    beside.overwrite(before.metadata, STUB)
    savepoint.dispose(limited, str(before), "ann", at(1))
    assert not list(beside.list(f"{before.name}/state"))


def test_savepoint_outside_of_the_roots_that_no_history_lists_is_not_disposed_of(
    before: SavepointPointer, tmp_path: Path
) -> None:
    stranger = open_store(str(tmp_path / "ckp2"), savepoint_roots=[])
    with pytest.raises(StoreMisconfigured, match=OUTSIDE):
        savepoint.dispose(stranger, str(before), "ann", at(1))


def test_stub_outside_of_the_roots_is_no_reason_to_delete(
    before: SavepointPointer, limited: Store, tmp_path: Path
) -> None:
    savepoint.dispose(limited, str(before), "ann", at(1))
    left = keys_in(tmp_path / "other")
    with pytest.raises(StoreMisconfigured, match=OUTSIDE):
        savepoint.dispose(limited, str(before), "ann", at(2))
    assert keys_in(tmp_path / "other") == left


def test_gone_savepoint_outside_of_the_roots_can_be_forgotten(
    before: SavepointPointer, limited: Store, tmp_path: Path
) -> None:
    open_store(before.root).delete_under(before.name)
    gone = savepoint.find_gone(limited, before)
    assert gone
    gone.forget("ann", at(1))
    with pytest.raises(CheckpointNotFound):
        resolve("chk-1", bystander(limited).state, limited)


def test_planted_savepoint_is_published_nowhere_outside_of_the_roots(limited: Store, tmp_path: Path) -> None:
    coordinator = driver(limited)
    append(coordinator, planted(f"file://{tmp_path}/other/savepoint-flights.delays-1-9f3c", "9f3c"))
    seal = f"{KEYS.prefix}/chk-1/_metadata"
    limited.create(seal, b"{}")
    append(coordinator, e.CheckpointCompleted(id=1, digest="d", metadata_bytes=9, bytes=0, states=()))
    with pytest.raises(StoreMisconfigured, match=OUTSIDE):
        savepoint.publish_due(bystander(limited))
    assert not (tmp_path / "other").exists()


# -- a journal in S3 ---------------------------------------------------------------------------------------------------


@pytest.fixture
def planted_in_s3(bucket: str, s3: S3Server, tmp_path: Path) -> Coordinator:
    """A history in S3 that lists an aborted savepoint in a folder of this host, which holds files of somebody else."""
    LocalStore(tmp_path).create("savepoint-flights.delays-1-9f3c/state/credentials", b"secret")
    coordinator = driver(open_store(f"s3://{bucket}/ckp", s3=s3.settings()))
    append(coordinator, planted(f"file://{tmp_path}/savepoint-flights.delays-1-9f3c", "9f3c"))
    return coordinator


def test_journal_in_s3_deletes_no_files_of_the_host_that_reads_it(planted_in_s3: Coordinator, tmp_path: Path) -> None:
    append(planted_in_s3, e.CheckpointAborted(id=1, reason="expired", phase="acknowledge"))
    with pytest.raises(StoreMisconfigured, match="because each host has its own folder there"):
        remove_orphans(planted_in_s3)
    assert keys_in(tmp_path) == ["savepoint-flights.delays-1-9f3c/state/credentials"]


def test_journal_in_s3_copies_no_files_of_the_host_into_the_bucket(planted_in_s3: Coordinator, tmp_path: Path) -> None:
    append(planted_in_s3, e.CheckpointCompleted(id=1, digest="d", metadata_bytes=9, bytes=0, states=()))
    with pytest.raises(StoreMisconfigured, match="because each host has its own folder there"):
        savepoint.publish_due(planted_in_s3)
    retire(planted_in_s3, at(1))
    assert keys_in(tmp_path) == ["savepoint-flights.delays-1-9f3c/state/credentials"]
