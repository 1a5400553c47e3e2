"""Where savepoints may lie: beside which store, and below which roots. Runs anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.storage import LocalStore, S3Settings, S3Store, Store, open_store

SETTINGS = S3Settings(region_name="eu-central-1")


def lake(*roots: str) -> Store:
    return open_store("s3://lake/ckp", s3=SETTINGS, savepoint_roots=roots)


# -- a folder beside S3 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["file:///opt/airflow/dags", "/opt/airflow/dags", "memory://mine"])
@pytest.mark.parametrize("limited", [True, False])
def test_folder_of_a_host_beside_a_store_in_s3_is_refused(uri: str, limited: bool) -> None:
    """A journal in the bucket, which many can write, would reach the files of each host that reads it."""
    with pytest.raises(
        StoreMisconfigured, match=r"not a place for savepoints of s3://lake/ckp, because each host.*savepoint_roots"
    ):
        open_store("s3://lake/ckp").beside(uri, limited=limited)


def test_folder_that_all_hosts_share_may_be_listed() -> None:
    store = lake("/mnt/savepoints").beside("file:///mnt/savepoints/daily")
    assert isinstance(store, LocalStore)
    assert store.uri == "file:///mnt/savepoints/daily"


# -- the roots -----------------------------------------------------------------------------------------------------------


def test_without_savepoint_roots_savepoints_may_lie_in_any_bucket() -> None:
    assert open_store("s3://lake/ckp", s3=SETTINGS).beside("s3://other/any").uri == "s3://other/any"


@pytest.mark.parametrize(
    "uri", ["s3://lake/ckp", "s3://lake/ckp/savepoints", "s3a://safe", "s3://safe/daily/", "S3://lake/exports/x"]
)
def test_places_below_the_root_and_the_savepoint_roots_are_allowed(uri: str) -> None:
    store = lake("s3://safe", "s3a://lake/exports/").beside(uri)
    assert isinstance(store, S3Store)
    assert store.settings == SETTINGS


@pytest.mark.parametrize(
    "uri", ["s3://lake", "s3://lake/ckp2", "s3://lake/exports2/x", "s3://safe2", "s3://other/safe", "file:///safe"]
)
def test_every_other_place_is_refused(uri: str) -> None:
    with pytest.raises(StoreMisconfigured, match="is not a place for savepoints"):
        lake("s3://safe", "s3://lake/exports").beside(uri)


def test_refusal_names_the_allowed_places() -> None:
    with pytest.raises(StoreMisconfigured) as refused:
        lake("s3a://safe/").beside("s3://other")
    assert refused.value.message == (
        "s3://other is not a place for savepoints: the connection allows s3://lake/ckp, s3://safe. Nothing was read or changed there."
        " Name a place below them, or add this place to savepoint_roots of the connection"
    )


def test_empty_list_allows_the_root_only() -> None:
    assert lake().beside("s3://lake/ckp/savepoints")
    with pytest.raises(StoreMisconfigured):
        lake().beside("s3://lake/savepoints")


def test_path_cannot_lead_out_of_a_root(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "ckp"), savepoint_roots=[str(tmp_path / "safe")])
    with pytest.raises(StoreMisconfigured):
        store.beside(f"{tmp_path}/safe/../other")


def test_symbolic_link_below_a_root_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "safe").mkdir()
    (tmp_path / "safe/link").symlink_to("/etc")
    store = open_store(str(tmp_path / "ckp"), savepoint_roots=[str(tmp_path / "safe")])
    with pytest.raises(StoreMisconfigured):
        store.beside(f"{tmp_path}/safe/link")


def test_root_behind_a_symbolic_link_is_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "safe").symlink_to("disk")
    store = open_store(str(tmp_path / "ckp"), savepoint_roots=[str(tmp_path / "safe")])
    assert store.beside(f"{tmp_path}/disk/daily")


def test_limit_holds_for_stores_that_were_reached_through_a_limited_store() -> None:
    beside = lake("s3://safe").beside("s3://safe/daily")
    assert beside.beside("s3://lake/ckp").uri == "s3://lake/ckp"
    with pytest.raises(StoreMisconfigured):
        beside.beside("s3://other")


def test_savepoint_to_delete_may_lie_outside_of_the_roots_of_today() -> None:
    assert lake().beside("s3://safe", limited=False).uri == "s3://safe"


@pytest.mark.parametrize("root", ["hdfs://namenode/savepoints", "s3://", "~/savepoints", "/"])
def test_savepoint_root_that_is_no_store_is_refused(root: str) -> None:
    with pytest.raises(StoreMisconfigured):
        lake(root)
