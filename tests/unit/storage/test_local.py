"""The local store: order of syncs, file modes, temporary files, and its root. Runs anywhere."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.storage import LocalStore, Put, base
from airflow_checkpoint_provider.storage.local import LEFT_OVER

KEY = "jobs/j/journal/0000000000000001"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return a list of system calls in order; paths are relative to ``tmp_path``, temporary names are ``tmp``."""
    seen: list[str] = []

    def name(path: object, folder: int | None) -> str:
        text = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        if folder is not None:
            text = f"{os.readlink(f'/proc/self/fd/{folder}')}/{text}"
        return "tmp" if "/.tmp-" in text else os.path.relpath(text, tmp_path)

    def watch(function: str) -> None:
        real: Callable[..., object] = getattr(os, function)

        def watched(*paths: object, **how: Any) -> object:
            folder = how.get("dir_fd", how.get("src_dir_fd"))
            shown = paths[:1] if function == "mkdir" else paths  # without the mode
            seen.append(" ".join([function, *(name(path, folder) for path in shown)]))
            return real(*paths, **how)

        monkeypatch.setattr(os, function, watched)

    for function in ("mkdir", "fsync", "link", "unlink", "replace"):
        watch(function)
    return seen


@pytest.fixture(params=[0o022, 0o077, 0o000], ids="umask {:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: str) -> dict[str, str]:
    """Return the modes of all that lies in ``folder``, in octal."""
    return {path.name: f"{path.stat().st_mode & 0o7777:o}" for path in Path(folder).rglob("*")}


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


def test_files_of_others_are_synced_once_and_so_is_each_folder_above_them(store: LocalStore, calls: list[str]) -> None:
    for file_set in ("a", "b"):
        folder = Path(store.root, "state", file_set)
        folder.mkdir(parents=True)
        for part in ("1", "2"):
            (folder / part).write_bytes(b"rows")
    calls.clear()
    store.make_durable(f"state/{file_set}/{part}" for file_set in ("a", "b") for part in ("1", "2"))
    assert calls == [
        "fsync root/state/a/1", "fsync root/state/a/2", "fsync root/state/b/1", "fsync root/state/b/2",
        "fsync root/state", "fsync root/state/a", "fsync root/state/b",
    ]  # fmt: skip


def test_overwrite_renames_a_synced_file(store: LocalStore, calls: list[str]) -> None:
    store.overwrite("b", b"x")
    assert calls == ["mkdir root", "fsync .", "fsync tmp", "replace tmp root/b", "unlink tmp", "fsync root"]


def test_no_temporary_file_is_left(store: LocalStore) -> None:
    store.create("a/b", b"x")
    store.create("a/b", b"y")
    store.overwrite("a/b", b"z")
    assert names(store, "a") == ["b"]


@pytest.mark.usefixtures("umask")
def test_new_root_and_what_lies_below_it_are_for_the_owner_alone(store: LocalStore, tmp_path: Path) -> None:
    store.create("a/created", b"x")
    store.overwrite("a/overwritten", b"x")
    assert modes(str(tmp_path)) == {"root": "700", "a": "700", "created": "600", "overwritten": "600"}


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("root", "folder", "file"),
    [
        (0o2770, "2770", "660"),
        (0o750, "750", "640"),
        (0o755, "755", "644"),
        (0o777, "777", "666"),
        (0o700, "700", "600"),
    ],
)
def test_what_lies_below_a_root_follows_its_mode(store: LocalStore, root: int, folder: str, file: str) -> None:
    os.mkdir(store.root)
    os.chmod(store.root, root)
    store.create("a/b/created", b"x")
    store.overwrite("a/b/overwritten", b"x")
    assert f"{os.stat(store.root).st_mode & 0o7777:o}" == f"{root:o}"
    assert modes(store.root) == {"a": folder, "b": folder, "created": file, "overwritten": file}


@pytest.mark.usefixtures("umask")
def test_sticky_root_hands_down_no_right_to_write_for_all(store: LocalStore) -> None:
    os.mkdir(store.root)
    os.chmod(store.root, 0o1777)
    store.create("a/b/created", b"x")
    store.overwrite("top", b"x")
    assert modes(store.root) == {"a": "775", "b": "775", "created": "664", "top": "664"}


def test_files_have_the_rights_of_the_root_where_no_mode_can_be_changed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS 4 and ZFS can refuse it. The umask of a group leaves nothing to change."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    os.mkdir(store.root)
    os.chmod(store.root, 0o770)
    monkeypatch.setattr(os, "fchmod", refused)
    before = os.umask(0o002)
    try:
        store.create("a/created", b"x")
        store.overwrite("a/overwritten", b"x")
    finally:
        os.umask(before)
    assert modes(store.root) == {"a": "770", "created": "660", "overwritten": "660"}


def test_what_lies_below_a_setgid_root_has_its_group(store: LocalStore) -> None:
    other = next((group for group in os.getgroups() if group != os.getegid()), 4711)
    os.mkdir(store.root)
    try:
        os.chown(store.root, -1, other)
    except PermissionError:
        pytest.skip("this user is in one group only")
    os.chmod(store.root, 0o2770)
    store.create("a/b/created", b"x")
    assert {path.stat().st_gid for path in Path(store.root).rglob("*")} == {other}


def test_reading_and_listing_create_no_folder(store: LocalStore) -> None:
    assert store.read("a/b") is None
    assert list(store.list("")) == []
    assert list(store.folders("a")) == []
    store.delete(["a/b"])
    store.delete_under("a")
    assert not os.path.exists(store.root)


def test_listing_after_a_key_reads_no_folder_before_it(store: LocalStore) -> None:
    for folder in ("a", "a-b", "a/c", "b", "c"):
        store.create(f"jobs/{folder}/state/0", b"x")
    keys = [listed.key for listed in store.list("jobs")]
    for after, read in {"jobs/a/z": 6, "jobs/a0": 5, "jobs/b/state/": 5, "jobs/b/state/0": 5, "jobs/d": 1}.items():
        with mock.patch("os.scandir", wraps=os.scandir) as scanned:
            assert [listed.key for listed in store.list("jobs", after)] == [key for key in keys if key > after]
        assert scanned.call_count == read


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
        lambda: store.delete_under("out"), lambda: list(store.list("out")),
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


def test_copy_of_an_object_that_grows_ends_with_what_it_held(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "PART", 4)
    store.create("rows", b"acknowledged")
    copied = []
    for piece in store.parts("rows"):
        copied.append(piece)
        with open(f"{store.root}/rows", "ab") as file:
            file.write(b"appended")
        assert len(copied) <= 3
    assert copied == [b"ackn", b"owle", b"dged"]


def test_store_works_where_the_system_has_no_o_path(tmp_path: Path) -> None:
    """As on macOS, where DAGs may be parsed."""
    code = (
        "import os, sys; del os.O_PATH\n"
        "from airflow_checkpoint_provider.storage import LocalStore\n"
        "store = LocalStore(sys.argv[1]); store.create('a/b', b'x'); print(store.read('a/b'))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "root")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "b'x'\n", done.stderr


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
