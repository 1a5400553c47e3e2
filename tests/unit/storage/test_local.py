"""The local store: order of syncs, file modes, temporary files, and its root. Runs anywhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.storage import LocalStore, Put
from airflow_checkpoint_provider.storage.local import LEFT_OVER

KEY = "jobs/j/journal/0000000000000001"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return a list of system calls in order; paths are relative to ``tmp_path``, temporary names are ``tmp``."""
    seen: list[str] = []

    def name(path: object) -> str:
        text = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        relative = os.path.relpath(text, tmp_path)
        return "tmp" if "/.tmp-" in text else relative

    def watch(function: str) -> None:
        real: Callable[..., object] = getattr(os, function)

        def watched(*paths: object) -> object:
            seen.append(" ".join([function, *map(name, paths)]))
            return real(*paths)

        monkeypatch.setattr(os, function, watched)

    for function in ("mkdir", "fsync", "link", "unlink", "replace"):
        watch(function)
    return seen


@pytest.fixture
def private_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def names(store: LocalStore, folder: str) -> list[str]:
    return sorted(os.listdir(f"{store.root}/{folder}"))


def test_create_syncs_content_before_the_link_and_the_folder_after_it(store: LocalStore, calls: list[str]) -> None:
    store.create("a/b", b"x")
    assert calls == [
        "mkdir root", "fsync .", "mkdir root/a", "fsync root",
        "fsync tmp", "link tmp root/a/b", "unlink tmp", "fsync root/a",
    ]  # fmt: skip
    calls.clear()
    assert store.create("a/b", b"y") is Put.EXISTS
    assert calls == ["fsync tmp", "link tmp root/a/b", "unlink tmp"]


def test_overwrite_renames_a_synced_file(store: LocalStore, calls: list[str]) -> None:
    store.overwrite("b", b"x")
    assert calls == ["mkdir root", "fsync .", "fsync tmp", "replace tmp root/b", "unlink tmp", "fsync root"]


def test_no_temporary_file_is_left(store: LocalStore) -> None:
    store.create("a/b", b"x")
    store.create("a/b", b"y")
    store.overwrite("a/b", b"z")
    assert names(store, "a") == ["b"]


@pytest.mark.usefixtures("private_umask")
def test_files_have_the_modes_of_the_umask(store: LocalStore) -> None:
    store.create("a/created", b"x")
    store.overwrite("a/overwritten", b"x")
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path(store.root).rglob("*")}
    assert modes == {"a": 0o755, "created": 0o644, "overwritten": 0o644}


def test_reading_and_listing_create_no_folder(store: LocalStore) -> None:
    assert store.read("a/b") is None
    assert list(store.list("")) == []
    assert list(store.folders("a")) == []
    store.delete(["a/b"])
    store.delete_under("a")
    assert not os.path.exists(store.root)


def test_temporary_files_are_hidden_and_deleted_after_a_day(store: LocalStore) -> None:
    store.create("journal/1", b"x")
    store.create("journal/2", b"x")
    for left, age in {".tmp-old": LEFT_OVER + 60, ".tmp-new": LEFT_OVER - 60, ".x.crc": LEFT_OVER + 60}.items():
        path = Path(store.root, "journal", left)
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    assert [listed.key for listed in store.list("")] == ["journal/1", "journal/2"]
    store.delete(["journal/1"])
    assert names(store, "journal") == [".tmp-new", ".x.crc", "2"]
    store.delete_under("journal")
    assert names(store, "") == []


def test_symbolic_links_below_the_root_are_refused(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    store.create("in/side", b"x")
    Path(store.root, "out").symlink_to(outside)
    Path(store.root, "in", "file").symlink_to(outside / "precious")

    for act in (
        lambda: store.create("out/new", b"x"), lambda: store.overwrite("out/precious", b""),
        lambda: store.read("in/file"), lambda: store.delete(["out/precious"]),
        lambda: store.delete_under("out"), lambda: store.list("out"),
    ):  # fmt: skip
        with pytest.raises(StoreMisconfigured, match="symbolic link"):
            act()
    assert [listed.key for listed in store.list("")] == ["in/side"]
    assert list(store.folders("")) == ["in"]
    store.delete_under("in")
    assert os.listdir(outside) == ["precious"]

    linked = LocalStore(Path(store.root, "out"))
    assert linked.read("precious") == b"x"


def test_directory_is_no_object(store: LocalStore) -> None:
    store.create("a/b", b"x")
    with pytest.raises(StoreMisconfigured, match="cannot read"):
        store.read("a")
    with pytest.raises(StoreMisconfigured, match="cannot write"):
        store.create("a/b/c", b"x")


def test_relative_root_becomes_absolute_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("checkpoints")
    monkeypatch.chdir("/")
    store.create("a", b"x")
    assert store.uri == f"file://{tmp_path}/checkpoints"
    assert (tmp_path / "checkpoints" / "a").read_bytes() == b"x"


def test_put_costs_two_syncs(store: LocalStore) -> None:
    """File and folder are synced, to survive a crash of the machine; only a new folder costs more."""
    store.create("journal/0", b"x")
    with mock.patch("os.fsync", wraps=os.fsync) as sync:
        store.create("journal/1", b"x")
    assert sync.call_count == 2
