"""Errors of the local store when the system refuses: denied, misconfigured, unavailable or unknown. Runs anywhere."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import Damaged, StoreDenied, StoreError, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.storage import LocalStore, Put
from airflow_checkpoint_provider.storage.base import put

Refuse = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "root")
    store.create("journal/0", b"before")
    return store


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Make a function of ``os`` fail with an errno, without its effect or (``after=True``) with it."""

    def install(function: str, code: int, *, after: bool = False, on: str = "") -> None:
        real: Callable[..., object] = getattr(os, function)

        def failing(*args: object, **how: Any) -> object:
            if on and not os.readlink(f"/proc/self/fd/{args[0]}").endswith(on):
                return real(*args, **how)
            if after:
                real(*args, **how)
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, function, failing)

    return install


def left(store: LocalStore) -> list[str]:
    return sorted(os.listdir(f"{store.root}/journal"))


@pytest.mark.parametrize(
    ("function", "code", "error"),
    [
        ("fsync", errno.ENOSPC, StoreUnavailable),
        ("fsync", errno.EIO, StoreUnavailable),
        ("fsync", errno.EDQUOT, StoreUnavailable),
        ("link", errno.EROFS, StoreDenied),
        ("link", errno.EACCES, StoreDenied),
        ("link", errno.EPERM, StoreMisconfigured),
        ("link", errno.EOPNOTSUPP, StoreMisconfigured),
        ("link", errno.ENOSYS, StoreMisconfigured),
    ],
)
def test_error_before_the_link_stores_nothing(
    store: LocalStore, refuse: Refuse, function: str, code: int, error: type[StoreError]
) -> None:
    refuse(function, code)
    with pytest.raises(error, match=os.strerror(code)):
        store.create("journal/1", b"x")
    assert left(store) == ["0"]


@pytest.mark.parametrize("on", ["journal/0", "journal"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_file_of_others_that_cannot_be_synced_is_damaged(store: LocalStore, refuse: Refuse, code: int, on: str) -> None:
    """No second sync would tell that its bytes are lost."""
    refuse("fsync", code, on=on)
    with pytest.raises(Damaged, match=rf"{on} could not be written to the disk \({os.strerror(code)}\)"):
        store.make_durable(["journal/0"])


@pytest.mark.parametrize(("code", "error"), [(errno.EINVAL, StoreMisconfigured), (errno.EACCES, StoreDenied)])
def test_sync_that_did_not_begin_damages_nothing(
    store: LocalStore, refuse: Refuse, code: int, error: type[StoreError]
) -> None:
    """For example, the directory cannot be opened, or its file system syncs no directories."""
    refuse("fsync", code, on="journal")
    with pytest.raises(error, match=os.strerror(code)):
        store.make_durable(["journal/0"])


def test_missing_file_of_others_is_not_durable(store: LocalStore) -> None:
    with pytest.raises(StoreUnavailable, match="journal: No such file"):
        store.make_durable(["journal/1"])


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOSPC, errno.ETIMEDOUT])
def test_failed_link_is_unknown(store: LocalStore, refuse: Refuse, code: int) -> None:
    refuse("link", code)
    assert store.create("journal/1", b"x") is Put.UNKNOWN
    assert left(store) == ["0"]


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT])
def test_link_with_a_lost_answer_is_stored(store: LocalStore, refuse: Refuse, code: int) -> None:
    refuse("link", code, after=True)
    assert store.create("journal/1", b"x") is Put.STORED
    assert left(store) == ["0", "1"]


def test_put_without_a_synced_folder_is_unknown_until_it_is_read(
    store: LocalStore, refuse: Refuse, caplog: pytest.LogCaptureFixture
) -> None:
    refuse("fsync", errno.EIO, on="/journal")
    assert store.create("journal/1", b"x") is Put.UNKNOWN
    (line,) = caplog.messages
    assert "journal/1: its folder cannot be synced, so a power cut may lose it: " in line
    assert put(store, "journal/1", b"x") == (Put.STORED, b"x")


def test_failed_overwrite_keeps_the_old_object(store: LocalStore, refuse: Refuse) -> None:
    refuse("replace", errno.EIO)
    with pytest.raises(StoreUnavailable, match="cannot write"):
        store.overwrite("journal/0", b"after")
    assert store.read("journal/0") == b"before"
    assert left(store) == ["0"]


def test_put_is_retried_if_its_temporary_file_was_deleted(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link
    swept: list[str] = []

    def slept(temporary: str, name: str, *, src_dir_fd: int, **how: Any) -> None:
        if not swept:
            swept.append(temporary)
            os.unlink(temporary, dir_fd=src_dir_fd)
        real(temporary, name, src_dir_fd=src_dir_fd, **how)

    monkeypatch.setattr(os, "link", slept)
    assert put(store, "journal/1", b"x") == (Put.STORED, b"x")


def test_file_as_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreMisconfigured, match="Not a directory"):
        LocalStore(tmp_path / "file").create("a", b"x")
    with pytest.raises(StoreMisconfigured, match="Not a directory"):
        LocalStore(tmp_path / "file" / "below").create("a", b"x")


ACTS = {
    "create": "store.create('journal/1', b'x')",
    "create in a new folder": "store.create('new/1', b'x')",
    "overwrite": "store.overwrite('journal/0', b'x')",
    "delete": "store.delete(['journal/0'])",
    "delete_under": "store.delete_under('journal')",
    "read": "store.read('secret/0')",
    "read absent": "store.read('secret/1')",
    "list": "list(store.list('secret'))",
    "folders": "list(store.folders('secret'))",
    "delete unseen": "store.delete(['secret/0'])",
    "delete_under unseen": "store.delete_under('secret/below')",
}


@pytest.mark.parametrize("act", ACTS)
def test_denied_access_is_never_taken_for_absent(store: LocalStore, act: str) -> None:
    """Runs in a process without root's rights, for which the kernel checks permissions."""
    as_user = [] if os.geteuid() else [shutil.which("setpriv") or "", "--bounding-set=-dac_override,-dac_read_search"]
    if as_user and not as_user[0]:
        pytest.skip("run as root, and there is no setpriv to give up its rights")
    store.create("secret/0", b"x")
    code = (
        "import sys; from airflow_checkpoint_provider.storage import LocalStore\n"
        "from airflow_checkpoint_provider.errors import StoreDenied\n"
        f"store = LocalStore(sys.argv[1])\ntry: {ACTS[act]}\nexcept StoreDenied as error: print(error)"
    )
    modes = {"": 0o555, "journal": 0o555, "secret": 0o000}
    try:
        for folder, mode in modes.items():
            os.chmod(f"{store.root}/{folder}", mode)
        done = subprocess.run(
            [*as_user, sys.executable, "-c", code, store.root], capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        for folder in modes:
            os.chmod(f"{store.root}/{folder}", 0o755)
    assert "Permission denied. Give user" in done.stdout, done.stderr
    assert store.read("journal/0") == b"before"
