"""Copying between stores: whole or not at all, few bytes held at a time, by the service itself where it can. Runs anywhere."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from airflow_checkpoint_provider.errors import Damaged, InvalidName, StoreDenied, StoreError
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, S3Store, Store, base, copy_all
from airflow_checkpoint_provider.storage import copy as copy_module
from airflow_checkpoint_provider.storage import s3 as s3_module
from airflow_checkpoint_provider.storage.copy import copy
from tests.support.faults import Call, Fault, FaultyStore, Killed
from tests.support.s3faults import FaultProxy, Harm
from tests.support.s3server import Key, S3Server

MIB = 1024 * 1024
SMALLEST_PART = 5 * MIB  # but for the last; S3 refuses an object of smaller ones
LARGE = os.urandom(MIB) * 6
SIZES = [0, 1, 99, 100, 101, 250]
KINDS = ["local", "memory", "s3"]


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Store]:
    """Two stores of the kinds that the test names."""

    def of(kind: str, name: str) -> Store:
        if kind == "s3":
            return S3Store(request.getfixturevalue("bucket"), name, request.getfixturevalue("s3").settings())
        return LocalStore(tmp_path / name) if kind == "local" else MemoryStore(name)

    source, target = request.param
    return of(source, "from"), of(target, "to")


every_pair = pytest.mark.parametrize("pair", [(a, b) for a in KINDS for b in KINDS], indirect=True, ids="-".join)
across = pytest.mark.parametrize("pair", [("local", "s3"), ("s3", "local")], indirect=True, ids="-".join)


def keys(store: Store) -> list[str]:
    return [listed.key for listed in store.list("")]


# -- every store to every store ------------------------------------------------------------------------------------------


@every_pair
def test_linked_copy_has_the_bytes_of_the_source_and_replaces_what_was_there(pair: tuple[Store, Store]) -> None:
    source, target = pair
    source.create("state/4.delta", b"rows")
    for old in (None, b"older rows", b"rows"):
        if old:
            target.overwrite("copy/4.delta", old)
        assert copy(source, "state/4.delta", target, "copy/4.delta", linked=True) == 4
        assert target.read("copy/4.delta") == b"rows"
        assert keys(target)[0] == "copy/4.delta"
        assert [*target.hidden("copy")] == []


def test_linked_copy_on_one_file_system_takes_no_room(tmp_path: Path) -> None:
    source, target = LocalStore(tmp_path / "from"), LocalStore(tmp_path / "to")
    source.create("a", b"rows")
    for _ in range(2):
        copy(source, "a", target, "b", linked=True)
    assert os.stat(tmp_path / "from" / "a").st_ino == os.stat(tmp_path / "to" / "b").st_ino
    source.delete(["a"])
    assert target.read("b") == b"rows"


@pytest.mark.parametrize("why", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_bytes_are_copied_where_the_file_system_cannot_link(
    why: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = LocalStore(tmp_path / "from"), LocalStore(tmp_path / "to")
    source.create("a", b"rows")

    def link(*_: object, **__: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(os, "link", link)
    assert copy(source, "a", target, "b", linked=True) == 4
    assert target.read("b") == b"rows"
    with pytest.raises(Damaged):
        copy(source, "absent", target, "b", linked=True)


def test_linked_copy_of_an_absent_object_is_damage(tmp_path: Path) -> None:
    with pytest.raises(Damaged):
        copy(LocalStore(tmp_path / "from"), "a", LocalStore(tmp_path / "to"), "b", linked=True)


@every_pair
def test_copy_has_the_bytes_of_the_source(pair: tuple[Store, Store]) -> None:
    source, target = pair
    for size in SIZES:
        body = os.urandom(size)
        source.overwrite("a/b", body)
        assert copy(source, "a/b", target, f"new/{size}") == size
        assert target.read(f"new/{size}") == body
        assert source.read("a/b") == body


@pytest.mark.parametrize("pair", [("local", "local"), ("memory", "memory")], indirect=True, ids="-".join)
@pytest.mark.parametrize("size", SIZES)
def test_copy_in_pieces_has_the_bytes_of_the_source(
    pair: tuple[Store, Store], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "PART", 100)
    source, target = pair
    body = os.urandom(size)
    source.overwrite("a", body)
    assert [len(piece) for piece in source.parts("a")] == [100] * (size // 100) + [size % 100] * (size % 100 > 0)
    assert copy(source, "a", target, "a") == size
    assert target.read("a") == body


@every_pair
def test_copy_replaces_the_target(pair: tuple[Store, Store]) -> None:
    source, target = pair
    target.overwrite("a", b"an older and longer one")
    source.overwrite("a", b"new")
    copy(source, "a", target, "a")
    assert target.read("a") == b"new"


@every_pair
def test_copy_of_an_absent_object_raises_damaged_and_leaves_nothing(pair: tuple[Store, Store]) -> None:
    """A seal names it: that it is not there is no smaller matter than that it is not whole."""
    source, target = pair
    source.overwrite("absent-not", b"its name only begins like it")
    for absent in ("absent", "no/folder/absent", "absent-not/below"):
        with pytest.raises(Damaged, match=rf"{source.uri}/{absent} is missing"):
            copy(source, absent, target, "a")
    assert keys(target) == []


@every_pair
def test_copy_refuses_keys_that_leave_the_root(pair: tuple[Store, Store]) -> None:
    source, target = pair
    source.overwrite("a", b"x")
    with pytest.raises(InvalidName, match="is not a valid key"):
        copy(source, "../a", target, "a")
    with pytest.raises(InvalidName, match="is not a valid key"):
        copy(source, "a", target, "../a")


def test_pieces_are_full_even_if_reads_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PART", 4)
    answers = iter([b"ab", b"c", b"d", b"ef", b"", b""])
    assert list(base.pieces(lambda _: next(answers))) == [b"abcd", b"ef"]


# -- within one service --------------------------------------------------------------------------------------------------


def test_copy_within_one_service_moves_no_bytes(s3: S3Server, bucket: str) -> None:
    s3.make_bucket(other := f"{bucket}-other")
    source, target = S3Store(bucket, "ckp", s3.settings()), S3Store(other, "", s3.settings())
    source.overwrite("state/a~2fb/1-ab/part 0.parquet", b"rows")
    s3.requests.clear()
    assert copy(source, "state/a~2fb/1-ab/part 0.parquet", target, "new") == 4
    assert target.read("new") == b"rows"
    assert s3.requests == {"LIST": 1, "COPY": 1, "GET": 1}


def test_large_object_is_copied_in_ranges(s3: S3Server, s3_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "COPIED_AT_ONCE", SMALLEST_PART)
    s3_store.overwrite("a", LARGE)
    s3.requests.clear()
    assert copy(s3_store, "a", s3_store, "b") == len(LARGE)
    assert s3.requests == {"LIST": 1, "POST": 2, "COPY": 2}
    assert s3_store.read("b") == LARGE


def test_small_object_is_published_without_a_range(hurt_store: S3Store, proxy: FaultProxy) -> None:
    """S3 wants a range of large objects only, and stricter services refuse it for small ones."""
    hurt_store.create("staged/part-0", b"rows")
    assert hurt_store.publish("staged/part-0", "rows/part-0")
    assert hurt_store.read("rows/part-0") == b"rows"
    copies = [{name.lower() for name, _ in sent.headers} for sent in proxy.requests]
    assert sum("x-amz-copy-source" in names for names in copies) == 1
    assert not any("x-amz-copy-source-range" in names for names in copies)


def test_ranges_are_contiguous_and_not_too_many() -> None:
    ranges = [part["CopySourceRange"] for part in s3_module._ranges(5 * 1024**4)]
    assert len(ranges) <= s3_module.MOST_PARTS
    assert ranges[-1].endswith(f"-{5 * 1024**4 - 1}")
    ends = [tuple(map(int, part.removeprefix("bytes=").split("-"))) for part in ranges]
    assert [end + 1 for _, end in ends[:-1]] == [start for start, _ in ends[1:]]


def test_copy_with_other_credentials_moves_the_bytes(s3: S3Server, bucket: str) -> None:
    """The service would ask whether one key may both read there and write here."""
    s3.keys["READER"] = Key("reader-secret")
    source, target = S3Store(bucket, "from", s3.settings("READER")), S3Store(bucket, "to", s3.settings())
    source.overwrite("a", b"x")
    s3.requests.clear()
    assert copy(source, "a", target, "a") == 1
    assert s3.requests == {"LIST": 1, "GET": 1, "PUT": 1}


# -- large ones ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> int:
    """Parts as small as S3 takes them."""
    monkeypatch.setattr(base, "PART", SMALLEST_PART)
    monkeypatch.setattr(s3_module, "PART", SMALLEST_PART)
    return len(LARGE)


@across
def test_large_object_is_written_in_parts(pair: tuple[Store, Store], large: int, s3: S3Server) -> None:
    source, target = pair
    source.overwrite("a", LARGE)
    s3.requests.clear()
    assert copy(source, "a", target, "b") == large
    asked = {"POST": 2, "PUT": 2} if isinstance(target, S3Store) else {"LIST": 1, "GET": 2}
    assert s3.requests == asked
    assert target.read("b") == LARGE


def test_copy_holds_few_bytes_in_memory(tmp_path: Path) -> None:
    source, target = LocalStore(tmp_path / "from"), LocalStore(tmp_path / "to")
    size = 8 * base.PART
    source.overwrite("a", b"")
    os.truncate(f"{source.root}/a", size)
    tracemalloc.start()
    try:
        assert copy(source, "a", target, "a") == size
        assert tracemalloc.get_traced_memory()[1] < 3 * base.PART
    finally:
        tracemalloc.stop()


def test_truncated_part_is_read_again(
    large: int, s3_store: S3Store, hurt_store: S3Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    s3_store.overwrite("a", LARGE)
    proxy.hurt("GET", "/a", Harm.CUT, times=2)
    target = LocalStore(tmp_path / "to")
    assert copy(hurt_store, "a", target, "a") == large
    assert target.read("a") == LARGE


def test_lost_answer_to_the_last_request_is_retried(
    large: int, hurt_store: S3Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    source = LocalStore(tmp_path / "from")
    source.overwrite("a", LARGE)
    proxy.hurt("POST", "uploadId", Harm.RESET_AFTER)
    assert copy(source, "a", hurt_store, "a") == large
    assert hurt_store.read("a") == LARGE


@pytest.mark.parametrize("harm", [Harm.ERROR_BEFORE, Harm.WITHOUT_ETAG])
def test_failed_part_leaves_nothing(
    large: int, harm: Harm, s3: S3Server, hurt_store: S3Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Not even parts that nobody sees and everybody pays for."""
    source = LocalStore(tmp_path / "from")
    source.overwrite("a", LARGE)
    proxy.hurt("PUT", "partNumber=2", harm, times=9, status=403, code="AccessDenied")
    with pytest.raises(StoreError):
        copy(source, "a", hurt_store, "a")
    assert keys(hurt_store) == []
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=hurt_store.bucket)


# -- refused and killed --------------------------------------------------------------------------------------------------


def test_copy_without_the_right_to_read_is_denied(s3: S3Server, s3_store: S3Store, tmp_path: Path) -> None:
    s3_store.overwrite("a", b"x")
    s3.keys["WRITER"].may = lambda method, path: method != "GET" or path.endswith(s3_store.bucket)
    try:
        with pytest.raises(StoreDenied, match="s3:GetObject"):
            copy(s3_store, "a", LocalStore(tmp_path / "to"), "a")
    finally:
        s3.keys["WRITER"].may = lambda method, path: True
    assert not (tmp_path / "to" / "a").exists()


@pytest.mark.parametrize("pair", [("local", "s3"), ("s3", "s3")], indirect=True, ids="-".join)
def test_copy_without_the_right_to_write_is_denied(pair: tuple[Store, Store], s3: S3Server) -> None:
    source, target = pair
    source.overwrite("a", b"x")
    s3.keys["WRITER"].may = lambda method, path: method == "GET"
    try:
        with pytest.raises(StoreDenied, match="s3:PutObject"):
            copy(source, "a", target, "a")
    finally:
        s3.keys["WRITER"].may = lambda method, path: True
    assert keys(target) == []


def test_denied_copy_names_the_store_that_refused(tmp_path: Path) -> None:
    source = FaultyStore(LocalStore(tmp_path / "from"), lambda _: Fault.DENIED)
    with pytest.raises(StoreDenied, match="by plan"):
        copy(source, "a", LocalStore(tmp_path / "to"), "a")
    assert list((tmp_path / "to").iterdir()) == []


SLOW = """
import sys, time
from airflow_checkpoint_provider.storage import LocalStore
def parts():
    yield b"x" * 100_000
    print("half", flush=True)
    time.sleep(60)
LocalStore(sys.argv[1]).assemble("group/part-0", parts())
"""


def test_killed_copy_leaves_nothing_visible(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"half\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    store = LocalStore(tmp_path)
    assert keys(store) == []
    assert store.read("group/part-0") is None
    assert [name[:5] for name in os.listdir(tmp_path / "group")] == [".tmp-"]


# -- several -------------------------------------------------------------------------------------------------------------


def filled(number: int) -> MemoryStore:
    store = MemoryStore()
    for n in range(number):
        store.overwrite(f"old/{n:02}", b"x" * n)
    return store


def pairs(number: int) -> list[tuple[str, str]]:
    return [(f"old/{n:02}", f"new/{n:02}") for n in range(number)]


@every_pair
def test_copy_all_copies_each_pair_and_reports_it(pair: tuple[Store, Store]) -> None:
    source, target = pair
    for n in range(12):
        source.overwrite(f"old/{n:02}", b"x" * n)
    told: list[tuple[str, int]] = []
    assert copy_all(source, target, pairs(12), lambda key, size: told.append((key, size))) == sum(range(12))
    assert sorted(told) == [(f"new/{n:02}", n) for n in range(12)]
    assert keys(target) == [new for _, new in pairs(12)]


def test_copy_all_of_nothing_copies_nothing() -> None:
    assert copy_all(MemoryStore(), MemoryStore(), []) == 0


def test_copy_all_raises_the_first_of_several_errors() -> None:
    for _ in range(20):
        source = filled(12)
        source.delete(["old/03", "old/04", "old/05"])
        with pytest.raises(Damaged, match="old/03"):
            copy_all(source, MemoryStore(), pairs(12))


@pytest.mark.parametrize("by", ["a store", "who is told"])
def test_copy_all_begins_no_copy_after_an_error(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of 200 fails while those begun beside it wait; told is a driver that finds itself replaced."""
    over = Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            over.set()
            super().shutdown(wait)

    def first(call: Call) -> Fault:
        return Fault.DENIED if by == "a store" and call.key == "old/00" else Fault.NONE

    def others(call: Call) -> Fault:
        return Fault.NONE if call.key == "new/00" or over.wait(30) else Fault.DENIED

    def replaced(key: str, size: int) -> None:
        raise Killed(key)

    monkeypatch.setattr(copy_module, "ThreadPoolExecutor", Pool)
    source, target = FaultyStore(filled(200), first), FaultyStore(MemoryStore(), others)
    with pytest.raises((StoreDenied, Killed)) as told:
        copy_all(source, target, pairs(200), replaced)
    assert told.type is (StoreDenied if by == "a store" else Killed)
    assert source.requests["read"] <= copy_module.AT_ONCE + 1
    assert len(keys(target)) == target.requests["overwrite"]  # nothing goes on behind the caller's back
