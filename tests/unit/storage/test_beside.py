"""A local place beside a store: the rights of what is created there, and links that lead to it. Runs anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.storage import LocalStore, Store, open_store
from tests.unit.storage.local_acts import ACTS

KEY = "savepoint-orders-1-n0nce/_metadata"


@pytest.fixture(autouse=True, params=[0o022, 0o077], ids="umask {:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory of a group."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o2770)
    return folder


def modes(folder: Path) -> dict[str, str]:
    """Return the modes of all that lies in ``folder``, in octal."""
    return {path.name: f"{path.stat().st_mode & 0o7777:o}" for path in folder.rglob("*")}


# -- rights --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["savepoints", "exports/daily"])
def test_savepoints_below_a_shared_root_have_its_rights(shared: Path, place: str) -> None:
    open_store(str(shared)).beside(f"{shared}/{place}").create(KEY, b"x")
    assert set(modes(shared).values()) == {"2770", "660"}


def test_savepoints_below_a_savepoint_root_have_its_rights(shared: Path, tmp_path: Path) -> None:
    open_store(str(tmp_path / "ckp"), savepoint_roots=[str(shared)]).beside(f"{shared}/daily").create(KEY, b"x")
    assert set(modes(shared).values()) == {"2770", "660"}


@pytest.mark.parametrize("place", ["daily", "exports/daily"])
def test_new_target_elsewhere_has_the_rights_of_the_directory_above(shared: Path, tmp_path: Path, place: str) -> None:
    open_store(str(tmp_path / "ckp")).beside(f"{shared}/{place}").create(KEY, b"x")
    assert set(modes(shared).values()) == {"2770", "660"}


def test_new_savepoint_root_has_the_rights_of_the_directory_above(shared: Path, tmp_path: Path) -> None:
    place = str(shared / "savepoints")
    open_store(str(tmp_path / "ckp"), savepoint_roots=[place]).beside(place).create(KEY, b"x")
    assert set(modes(shared).values()) == {"2770", "660"}


# -- links ---------------------------------------------------------------------------------------------------------------


def home(root: Path) -> Store:
    return open_store(str(root))


def limited_home(root: Path) -> Store:
    return open_store(str(root), savepoint_roots=[])


def savepoint_root(root: Path) -> Store:
    return open_store(str(root.parent / "ckp"), savepoint_roots=[str(root)])


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("of", [home, limited_home, savepoint_root])
@pytest.mark.parametrize("place", ["link", "team/link", "link/daily"])
def test_link_above_a_savepoint_is_not_followed_out_of_the_root(
    tmp_path: Path, of: Callable[[Path], Store], place: str, act: str
) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    LocalStore(outside).create(KEY, b"not below the root")
    LocalStore(outside / "daily").create(KEY, b"not below the root")
    before = sorted(outside.rglob("*"))
    (root / "team").mkdir(parents=True)
    store = of(root).beside(f"file://{root}/{place}")
    assert store.uri == f"file://{root}/{place}"
    assert isinstance(store, LocalStore)
    (root / place.removesuffix("/daily")).symlink_to(outside)
    with pytest.raises(StoreMisconfigured, match="is a symbolic link, and below its root"):
        ACTS[act](store, KEY)
    assert sorted(outside.rglob("*")) == before


def test_target_elsewhere_and_a_root_may_be_links(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    for store in (open_store(str(tmp_path / "ckp")), open_store(str(tmp_path / "link"))):
        for place in ("link", "link/daily"):
            store.beside(f"{tmp_path}/{place}").overwrite(KEY, place.encode())
            assert (tmp_path / place / KEY).read_bytes() == place.encode()


def test_store_below_a_root_names_its_keys_from_its_own_folder(shared: Path) -> None:
    store = open_store(str(shared)).beside(f"{shared}/savepoints")
    store.create(KEY, b"x")
    assert [listed.key for listed in store.list("")] == [KEY]
    assert list(store.folders("")) == [KEY.split("/", maxsplit=1)[0]]
    assert store.beside(f"{shared}/savepoints").uri == store.uri == f"file://{shared}/savepoints"
    store.delete_under(KEY.split("/", maxsplit=1)[0])
    assert os.listdir(shared / "savepoints") == []
