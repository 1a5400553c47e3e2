"""The contract of all stores. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import Damaged, InvalidName, TooLarge
from airflow_checkpoint_provider.storage import Listed, LocalStore, MemoryStore, Put, S3Store, Store
from airflow_checkpoint_provider.storage.base import LARGEST, PART, exists, put, whole
from tests.support.faults import FaultyStore

KEYS = ["a-b", "a.b", "a/b", "a/b-c/d", "a/b0", "a0", "b/c/d/e", "ab/c", "z", "ü/ü", "\U0001f600", "\uffee"]
HIDDEN = [".tmp-host-1-ab", ".d/x", "a/.b.crc", "a/.e/f"]

ESCAPES = ["", "/", "/etc/x", "a/", "a//b", "..", "../x", "a/../x", "a/..", ".", "a/./b", "a\0b"]


@pytest.fixture(params=["local", "memory", "faulty", "s3", "s3 bucket", pytest.param("ceph", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    stores: dict[str, Callable[[], Store]] = {
        "local": lambda: LocalStore(tmp_path / "root"),
        "memory": MemoryStore,
        "faulty": lambda: FaultyStore(MemoryStore()),
        "s3": lambda: request.getfixturevalue("s3_store"),
        "s3 bucket": lambda: S3Store(request.getfixturevalue("bucket"), "", request.getfixturevalue("s3").settings()),
        "ceph": lambda: request.getfixturevalue("ceph_store"),
    }
    return stores[request.param]()


def fill(store: Store, *keys: str) -> None:
    for key in keys:
        assert store.create(key, key.encode()) is Put.STORED


def keys(store: Store, prefix: str = "", after: str = "") -> list[str]:
    return [listed.key for listed in store.list(prefix, after)]


def test_first_of_two_puts_stays(store: Store) -> None:
    assert store.create("journal/0", b"first") is Put.STORED
    assert store.create("journal/0", b"second") is Put.EXISTS
    assert store.create("journal/0", b"first") is Put.EXISTS
    assert store.read("journal/0") == b"first"


def test_empty_object_is_not_absent(store: Store) -> None:
    store.create("empty", b"")
    assert store.read("empty") == b""
    assert store.create("empty", b"x") is Put.EXISTS


def test_range_is_cut_out_of_an_object_and_ends_with_it(store: Store) -> None:
    store.create("rows", b"0123456789")
    assert store.read_range("rows", 0, 4) == b"0123"
    assert store.read_range("rows", 6, 4) == b"6789"
    assert store.read_range("rows", 8, 100) == b"89"
    assert store.read_range("absent", 0, 4) is store.read_range("rows/below", 0, 4) is None


def test_read_below_an_absent_key_or_an_object_returns_none(store: Store) -> None:
    fill(store, "a")
    assert store.read("b") is None
    assert store.read("b/c/d") is None
    assert store.read("a/b") is None


def test_overwrite_replaces_or_creates(store: Store) -> None:
    store.overwrite("heartbeat/1", b"one")
    store.overwrite("heartbeat/1", b"two, longer")
    store.overwrite("heartbeat/1", b"3")
    assert store.read("heartbeat/1") == b"3"
    assert store.create("heartbeat/1", b"x") is Put.EXISTS


def test_deleted_key_is_absent_and_can_be_put_again(store: Store) -> None:
    fill(store, "a", "b/c", "b/d")
    store.delete(["a", "b/c", "absent", "absent/too", "a/below"])
    assert keys(store) == ["b/d"]
    assert store.create("a", b"again") is Put.STORED


def test_delete_under_deletes_all_below_and_nothing_beside(store: Store) -> None:
    fill(store, "chk-1/acks/x", "chk-1/_metadata", "chk-1/.hidden", "chk-1/.d/x", "chk-10/_metadata", "chk-1-1")
    store.delete_under("chk-1")
    store.delete_under("chk-1")
    store.delete_under("absent/folder")
    store.delete_under("chk-1-1")  # an object, and nothing is below it
    assert keys(store) == ["chk-1-1", "chk-10/_metadata"]
    assert store.read("chk-1/.hidden") is store.read("chk-1/.d/x") is None
    assert list(store.folders("")) == ["chk-10"]


def test_delete_under_the_root_is_refused(store: Store) -> None:
    fill(store, "a")
    with pytest.raises(InvalidName):
        store.delete_under("")
    assert keys(store) == ["a"]


def test_list_returns_visible_keys_in_byte_order_with_sizes(store: Store) -> None:
    fill(store, *KEYS, *HIDDEN)
    expected = sorted(KEYS, key=str.encode)
    assert list(store.list("")) == [Listed(key, len(key.encode())) for key in expected]
    assert keys(store, "a") == ["a/b", "a/b-c/d", "a/b0"]
    assert keys(store, "absent") == keys(store, "z") == keys(store, "a/b/c") == []


def test_list_of_a_hidden_folder_returns_its_keys(store: Store) -> None:
    fill(store, *HIDDEN)
    assert keys(store) == []
    assert keys(store, ".d") == [".d/x"]
    assert keys(store, "a/.e") == ["a/.e/f"]


def test_hidden_returns_the_hidden_objects_directly_below(store: Store) -> None:
    fill(store, *KEYS, *HIDDEN, "a/.c")
    assert [*store.hidden("")] == [".tmp-host-1-ab"]
    assert [*store.hidden("a")] == ["a/.b.crc", "a/.c"]
    assert [*store.hidden("b")] == [*store.hidden("absent")] == []


@pytest.mark.parametrize("after", ["", *KEYS, "a", "a-", "a/", "a/b-c", "a/b-c/", "a/b-c/e", "a/c", "b", "y", "ü"])
def test_list_starts_after_any_key(store: Store, after: str) -> None:
    fill(store, *KEYS)
    assert keys(store, after=after) == [key for key in sorted(KEYS, key=str.encode) if key.encode() > after.encode()]
    assert keys(store, "a", after) == [key for key in ["a/b", "a/b-c/d", "a/b0"] if key.encode() > after.encode()]


def test_folders_returns_the_names_directly_below(store: Store) -> None:
    fill(store, *KEYS, *HIDDEN)
    assert list(store.folders("")) == ["a", "ab", "b", "ü"]
    assert list(store.folders("a")) == ["b-c"]
    assert list(store.folders("b")) == ["c"]
    assert list(store.folders("z")) == list(store.folders("absent")) == []


@pytest.mark.parametrize("key", ESCAPES)
def test_key_that_could_leave_the_root_is_refused(store: Store, key: str, tmp_path: Path) -> None:
    acts: list[Callable[[], object]] = [
        lambda: store.create(key, b"x"), lambda: store.read(key), lambda: store.overwrite(key, b"x"),
        lambda: store.delete([key]), lambda: store.delete_under(key),
    ]  # fmt: skip
    if key:
        acts += [lambda: list(store.list(key)), lambda: list(store.folders(key))]
    for act in acts:
        with pytest.raises(InvalidName, match="is not a valid key"):
            act()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(  # 136 MB: one kind of S3 is enough for the parts of an upload
    "store",
    [
        "local",
        "memory",
        "faulty",
        "s3",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("s3 bucket", "ceph")),
    ],
    indirect=True,
)
def test_object_up_to_the_limit_is_read_and_a_larger_object_is_damaged(store: Store) -> None:
    store.assemble("largest", [bytes(PART)] * (LARGEST // PART))
    store.assemble("planted", [*[bytes(PART)] * (LARGEST // PART), b"x"])
    assert len(store.read("largest") or b"") == LARGEST
    with pytest.raises(Damaged, match=rf"{store.uri}/planted has more than {LARGEST} bytes. .* or delete it"):
        store.read("planted")
    with pytest.raises(Damaged):
        put(store, "planted", b"ours")
    assert exists(store, "planted")
    assert store.read_range("planted", LARGEST, 10) == b"x"
    assert sum(map(len, store.parts("planted"))) == LARGEST + 1


def test_body_that_nobody_could_read_again_is_not_written(store: Store) -> None:
    for write in (store.create, store.overwrite):
        with pytest.raises(TooLarge, match="Nothing was written") as refused:
            write("seal", bytes(LARGEST + 1))
        assert refused.value.about["size"] == LARGEST + 1
    assert keys(store) == []


def test_object_that_grows_while_it_is_read_is_damaged() -> None:
    asked: list[int] = []

    def endless(length: int) -> bytes:
        asked.append(length)
        return bytes(length)

    with pytest.raises(Damaged, match=f"more than {LARGEST} bytes"):
        whole(endless, "file:///root", "journal/0", 0)
    assert sum(asked) <= LARGEST + PART
