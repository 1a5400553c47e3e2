"""The local store beside somebody who may write below its root: links, races, pipes and deep folders. Runs anywhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import CheckpointError, StoreMisconfigured
from airflow_checkpoint_provider.storage import LocalStore, Put
from airflow_checkpoint_provider.storage.directories import DEEPEST
from tests.unit.storage.local_acts import ACTS

KEY = "jobs/orders/journal/0"
SECRET = b"not below the root"

READS = ("read", "read_range", "parts")
CHANGES_ONLY_THE_NAME = ("overwrite", "assemble", "delete")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "root")
    assert store.create(KEY, b"ours") is Put.STORED
    return store


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory with the same names as below the root."""
    path = tmp_path / "outside"
    shutil.copytree(tmp_path / "root", path)
    for file in path.rglob("*"):
        if file.is_file():
            file.write_bytes(SECRET)
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- links ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_link_in_the_place_of_a_folder_is_refused(store: LocalStore, outside: Path, depth: int, act: str) -> None:
    before, folder = content(outside), "/".join(KEY.split("/")[:depth])
    shutil.rmtree(Path(store.root, folder))
    Path(store.root, folder).symlink_to(outside / folder)
    with pytest.raises(StoreMisconfigured, match=rf"/{folder} is a symbolic link, and below its root"):
        ACTS[act](store, KEY)
    assert content(outside) == before


@pytest.mark.parametrize("act", ACTS)
def test_link_in_the_place_of_an_object_leads_nowhere(store: LocalStore, outside: Path, act: str) -> None:
    before, planted = content(outside), Path(store.root, KEY)
    planted.unlink()
    planted.symlink_to(outside / KEY)
    if act in CHANGES_ONLY_THE_NAME:
        ACTS[act](store, KEY)
        assert store.read(KEY) == (None if act == "delete" else b"ours")
    else:
        with pytest.raises(StoreMisconfigured, match=rf"/{KEY} is a symbolic link"):
            ACTS[act](store, KEY)
    assert content(outside) == before


@pytest.mark.parametrize("to", ["outside", "outside/jobs"])
def test_link_below_a_folder_is_deleted_and_not_what_it_leads_to(store: LocalStore, outside: Path, to: str) -> None:
    before = content(outside)
    Path(store.root, "jobs", "orders", "link").symlink_to(outside.parent / to)
    store.delete_under("jobs/orders")
    assert list(store.list("")) == []
    assert content(outside) == before


def test_temporary_file_that_becomes_a_link_is_not_followed(
    store: LocalStore, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hard link to a file outside could be read below the root."""
    real = os.link

    def swapped(temporary: str, name: str, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool = True) -> None:
        os.unlink(temporary, dir_fd=src_dir_fd)
        os.symlink(outside / KEY, temporary, dir_fd=src_dir_fd)
        real(temporary, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "link", swapped)
    store.create("jobs/orders/journal/1", b"ours")
    with pytest.raises(StoreMisconfigured, match="is a symbolic link"):
        store.read("jobs/orders/journal/1")


SWAPPING = """
import ctypes, sys
swap, here, exchange = ctypes.CDLL(None).renameat2, -100, 2
folder, link = (name.encode() for name in sys.argv[1:])
while swap(here, folder, here, link, exchange) == 0:
    pass
"""


@pytest.fixture
def swapped(store: LocalStore, outside: Path) -> Iterator[None]:
    """Another process swaps a folder with a link to the same folder outside, for as long as the test runs."""
    link = Path(store.root, "link")
    link.symlink_to(outside / "jobs")
    process = subprocess.Popen([sys.executable, "-c", SWAPPING, f"{store.root}/jobs", str(link)])
    yield
    assert process.poll() is None
    process.kill()
    process.wait()


@pytest.mark.usefixtures("swapped")
@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_no_swap_of_a_folder_with_a_link_leads_out_of_the_root(
    store: LocalStore, outside: Path, seconds: float
) -> None:
    before, tries, refused = content(outside), 0, 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for name, act in ACTS.items():
            key = "jobs/orders" if name in ("delete_under", "list", "folders") else KEY
            tries += 1
            try:
                seen = act(store, key)
            except CheckpointError:
                refused += 1
            else:
                assert name not in READS or seen != SECRET
                assert name != "read_range" or seen != SECRET[:4]
        assert content(outside) == before
    assert 0 < refused < tries


# -- neither file nor folder ---------------------------------------------------------------------------------------------


def _socket(path: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX) as listening,
        contextlib.chdir(path.parent),
    ):  # a path of it has 108 bytes at most
        listening.bind(path.name)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root can make a device")


OTHERS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "device": _device,
    "folder": os.mkdir,
    "file": Path.touch,
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("other", [other for other in OTHERS if other != "file"])
def test_object_that_is_no_file_is_refused_at_once(store: LocalStore, other: str, act: str) -> None:
    planted = Path(store.root, "jobs/orders/journal/1")
    OTHERS[other](planted)
    key = str(planted.relative_to(store.root))
    if act in (*READS, "create"):
        with pytest.raises(StoreMisconfigured, match=rf"cannot read {planted}: it is not a file.* Move it away"):
            ACTS[act](store, key)
    elif other == "folder" and act in CHANGES_ONLY_THE_NAME:
        with pytest.raises(
            StoreMisconfigured, match=rf"{planted}: Is a directory. Somebody or something put it there; move it away"
        ):
            ACTS[act](store, key)
    else:
        ACTS[act](store, key)
    assert store.read(KEY) == b"ours"
    assert [listed.key for listed in store.list("") if listed.key != key] == [KEY]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("other", ["pipe", "socket", "device", "file"])
def test_pipe_in_the_place_of_a_folder_does_not_block(store: LocalStore, other: str, act: str) -> None:
    shutil.rmtree(Path(store.root, "jobs/orders"))
    OTHERS[other](Path(store.root, "jobs/orders"))
    if act in ("create", "overwrite", "assemble"):
        folder = f"{store.root}/jobs/orders"
        with pytest.raises(
            StoreMisconfigured, match=rf"{folder} is not a directory. Somebody or something put it there; move it away"
        ):
            ACTS[act](store, KEY)
    elif act == "parts":
        with pytest.raises(CheckpointError, match="is missing"):
            ACTS[act](store, KEY)
    else:
        assert not ACTS[act](store, KEY)


# -- odd trees -----------------------------------------------------------------------------------------------------------


def test_folders_of_any_depth_end_neither_a_listing_nor_a_deletion_untyped(store: LocalStore) -> None:
    handle = os.open(Path(store.root, "jobs"), os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=handle)
        below = os.open("deep", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)
    try:
        assert [listed.key for listed in store.list("")] == [KEY]
        with pytest.raises(StoreMisconfigured, match=f"more than {DEEPEST} directories deep"):
            store.delete_under("jobs/deep")
        assert store.read(KEY) == b"ours"
    finally:
        subprocess.run(["rm", "-rf", f"{store.root}/jobs/deep"], check=True)


def test_name_that_is_no_text_is_not_listed_and_is_deleted(store: LocalStore) -> None:
    for name in (b"\xff", b"folder-\xff/below"):
        path = os.path.join(os.fsencode(f"{store.root}/jobs"), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass
    assert [listed.key for listed in store.list("")] == [KEY]
    assert list(store.folders("jobs")) == ["orders"]
    store.delete_under("jobs")
    assert os.listdir(store.root) == []


def test_no_handle_is_left_open(store: LocalStore) -> None:
    Path(store.root, "link").symlink_to("/")
    os.mkfifo(Path(store.root, "jobs/pipe"))
    before = os.listdir("/proc/self/fd")
    for key in (KEY, "jobs/pipe", "jobs/orders", "link/tmp/x", "absent/x", "new/x"):
        for act in ACTS.values():
            with contextlib.suppress(CheckpointError):
                act(store, key)
    next(store.list(""), None)
    assert len(os.listdir("/proc/self/fd")) == len(before)
