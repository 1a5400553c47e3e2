"""The S3 store: few plain requests, complete listings and deletions, clients per process. Runs anywhere."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import Damaged, InvalidName, StoreDenied, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.location.fence import delete_location
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.storage import Listed, Put, S3Settings, S3Store, base
from airflow_checkpoint_provider.storage import s3 as s3_module
from tests.support.s3faults import FaultProxy, Harm
from tests.support.s3server import S3Server

fork = multiprocessing.get_context("fork")


def keys(store: S3Store, prefix: str = "") -> list[str]:
    return [listed.key for listed in store.list(prefix)]


def fill(store: S3Store, number: int) -> list[str]:
    filled = [f"journal/{n:016}" for n in range(number)]
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda key: store.create(key, b"x"), filled)) == {Put.STORED}
    return filled


# -- requests ------------------------------------------------------------------------------------------------------------


def test_call_costs_one_request(s3: S3Server, s3_store: S3Store) -> None:
    for act, kind in (
        (lambda: s3_store.create("a/b", b"x"), "PUT"),
        (lambda: s3_store.create("a/b", b"x"), "PUT"),
        (lambda: s3_store.overwrite("a/b", b"x"), "PUT"),
        (lambda: s3_store.read("a/b"), "GET"),
        (lambda: s3_store.read("absent"), "GET"),
        (lambda: list(s3_store.list("a")), "LIST"),
        (lambda: list(s3_store.folders("")), "LIST"),
        (lambda: s3_store.delete(["a/b"]), "DELETE"),
        (lambda: s3_store.delete(["a/b", "a/c"]), "POST"),
        (lambda: s3_store.delete_under("a"), "LIST"),
    ):
        s3.requests.clear()
        act()
        assert s3.requests == {kind: 1}


def test_put_sends_plain_bytes_with_a_signed_digest(hurt_store: S3Store, proxy: FaultProxy) -> None:
    hurt_store.create("journal/1", b"x" * 3000)
    hurt_store.overwrite("heartbeat", b"x" * 3000)
    for request in proxy.requests:
        headers = {name.lower(): value for name, value in request.headers}
        assert request.body == b"x" * 3000
        assert headers["content-length"] == "3000"
        assert len(headers["x-amz-content-sha256"]) == 64
        assert not {"expect", "transfer-encoding", "content-encoding", "x-amz-trailer"} & headers.keys()
    assert [dict(request.headers).get("If-None-Match") for request in proxy.requests] == ["*", None]


def test_failed_overwrite_is_retried(hurt_store: S3Store, proxy: FaultProxy) -> None:
    proxy.hurt("PUT", "", Harm.RESET_AFTER)
    hurt_store.overwrite("heartbeat", b"1")
    assert len(proxy.requests) == 2
    proxy.hurt("PUT", "", Harm.WITHOUT_ETAG)
    with pytest.raises(StoreMisconfigured, match="has no ETag"):
        hurt_store.overwrite("heartbeat", b"2")


def test_key_longer_than_1024_bytes_is_refused(s3_store: S3Store) -> None:
    longest = "k" * (1024 - len("ckp/"))
    assert s3_store.create(longest, b"x") is Put.STORED
    assert keys(s3_store) == [longest]
    for key in (longest + "k", "ü" * 511):
        with pytest.raises(InvalidName, match=r"1024 bytes\. Use a shorter root"):
            s3_store.create(key, b"x")


# -- reading -------------------------------------------------------------------------------------------------------------


def test_cut_answer_is_read_again(hurt_store: S3Store, proxy: FaultProxy) -> None:
    hurt_store.overwrite("seal", b"whole " * 1000)
    proxy.hurt("GET", "", Harm.CUT, times=s3_module.READ_TRIES - 1)
    assert hurt_store.read("seal") == b"whole " * 1000
    proxy.hurt("GET", "", Harm.CUT, times=s3_module.READ_TRIES)
    with pytest.raises(StoreUnavailable, match=r"IncompleteReadError|ResponseStreamingError"):
        hurt_store.read("seal")


def test_changed_answer_is_read_again_if_the_store_has_a_checksum(
    s3: S3Server, hurt_store: S3Store, proxy: FaultProxy
) -> None:
    s3.client.put_object(Bucket=hurt_store.bucket, Key="ckp/seal", Body=b"whole", ChecksumAlgorithm="SHA256")
    proxy.hurt("GET", "", Harm.FLIPPED, times=2)
    assert hurt_store.read("seal") == b"whole"
    proxy.hurt("GET", "", Harm.FLIPPED, times=s3_module.READ_TRIES)
    with pytest.raises(StoreUnavailable, match=r"FlexibleChecksumError.*the object itself is damaged"):
        hurt_store.read("seal")


@pytest.mark.parametrize("body", [b"whole " * 1000, b"x"])
def test_answer_in_chunks_is_read(hurt_store: S3Store, proxy: FaultProxy, body: bytes) -> None:
    """Gateways and proxies that compress send no Content-Length."""
    hurt_store.overwrite("seal", body)
    proxy.hurt("GET", "/ckp/seal", Harm.CHUNKED, times=2)
    assert hurt_store.read("seal") == body
    assert b"".join(hurt_store.parts("seal")) == body


def test_answer_in_chunks_is_refused_past_the_largest_object(
    hurt_store: S3Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurt_store.overwrite("seal", b"whole " * 1000)
    monkeypatch.setattr(base, "LARGEST", 5000)
    proxy.hurt("GET", "", Harm.CHUNKED)
    with pytest.raises(Damaged, match="5000"):
        hurt_store.read("seal")


def test_read_with_a_lost_answer_is_retried(hurt_store: S3Store, proxy: FaultProxy) -> None:
    hurt_store.overwrite("seal", b"x")
    proxy.hurt("GET", "", Harm.RESET_AFTER)
    assert hurt_store.read("seal") == b"x"


# -- listing and deleting ------------------------------------------------------------------------------------------------


def test_list_and_delete_use_several_pages(s3: S3Server, s3_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = fill(s3_store, 25)
    monkeypatch.setattr("airflow_checkpoint_provider.storage.s3.PAGE", 10)
    s3.requests.clear()
    assert keys(s3_store) == filled
    assert s3.requests == {"LIST": 3}
    assert [listed.key for listed in s3_store.list("journal", filled[19])] == filled[20:]
    assert s3.requests == {"LIST": 4}
    s3_store.delete(filled[:12])
    assert keys(s3_store) == filled[12:]
    s3.requests.clear()
    s3_store.delete_under("journal")
    assert s3.requests == {"LIST": 2, "POST": 2}
    assert keys(s3_store) == []


def test_delete_asks_for_a_thousand_keys_at_a_time(s3: S3Server, hurt_store: S3Store, proxy: FaultProxy) -> None:
    """S3 refuses 1,001 keys, though other servers accept more."""
    hurt_store.delete(f"journal/{n:016}" for n in range(2_001))
    assert [request.body.count(b"<Key>") for request in proxy.requests] == [1000, 1000, 0]
    assert [request.method for request in proxy.requests] == ["POST", "POST", "DELETE"]


def test_lost_page_of_a_listing_is_read_again(
    hurt_store: S3Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = fill(hurt_store, 12)
    monkeypatch.setattr("airflow_checkpoint_provider.storage.s3.PAGE", 5)
    for harm in (Harm.RESET_AFTER, Harm.CUT, Harm.ERROR_BEFORE):
        proxy.hurt("GET", "list-type=2", harm, skip=1)
        assert keys(hurt_store) == filled


PAGE_HEAD = "<ListBucketResult><Name>lake</Name><IsTruncated>{more}</IsTruncated>{token}{keys}</ListBucketResult>"


def page(*names: str, more: bool = True, token: str = "next") -> bytes:
    contents = "".join(f"<Contents><Key>ckp/{name}</Key><Size>1</Size></Contents>" for name in names)
    token = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return PAGE_HEAD.format(more=str(more).lower(), token=token, keys=contents).encode()


@pytest.mark.parametrize(
    ("pages", "says"),
    [
        ([page("a", "b"), page("a", "b")], "not listed in the order of their bytes"),
        ([page("b", "a", more=False)], "not listed in the order of their bytes"),
        ([page("a", token="")], "cut without a continuation token"),
        ([page(), page(), page()], "did not end after 3 pages"),
        ([b"<ListBucketResult/>"], "does not name the bucket"),
    ],
)
def test_inconsistent_listing_is_refused(
    hurt_store: S3Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, pages: list[bytes], says: str
) -> None:
    monkeypatch.setattr("airflow_checkpoint_provider.storage.s3.MOST_PAGES", 3)
    for body in pages:
        proxy.hurt("GET", "list-type=2", Harm.ANSWERED, status=200, body=body)
    with pytest.raises(StoreMisconfigured, match=says):
        list(hurt_store.list(""))


def test_list_works_if_the_store_ignores_start_after(hurt_store: S3Store, proxy: FaultProxy) -> None:
    proxy.hurt("GET", "list-type=2", Harm.ANSWERED, status=200, body=page("a", "b", "c", more=False))
    assert list(hurt_store.list("", "b")) == [Listed("c", 1)]


def test_folder_markers_are_not_listed_and_deleted_with_their_folder(s3: S3Server, s3_store: S3Store) -> None:
    """Hadoop leaves such markers."""
    for name in ("", "jobs/", "jobs/j/", "jobs/j//odd"):
        s3.client.put_object(Bucket=s3_store.bucket, Key=f"ckp/{name}", Body=b"")
    s3_store.create("jobs/j/entry", b"x")
    assert keys(s3_store) == keys(s3_store, "jobs/j") == ["jobs/j/entry"]
    assert list(s3_store.folders("")) == ["jobs"]
    assert list(s3_store.folders("jobs/j")) == []
    s3_store.delete_under("jobs")
    left = s3.client.list_objects_v2(Bucket=s3_store.bucket).get("Contents", [])
    assert [found["Key"] for found in left] == ["ckp/"]


FAILED = "<Error><Key>ckp/{name}</Key><Code>{code}</Code><Message>as planned</Message></Error>"


def test_key_that_a_batch_did_not_delete_is_deleted_alone(hurt_store: S3Store, proxy: FaultProxy) -> None:
    fill(hurt_store, 3)
    answer = "<DeleteResult>" + FAILED.format(name="journal/0000000000000001", code="InternalError") + "</DeleteResult>"
    proxy.hurt("POST", r"\?delete", Harm.ANSWERED, status=200, body=answer.encode())
    proxy.requests.clear()
    hurt_store.delete(f"journal/{n:016}" for n in range(3))
    assert [request.method for request in proxy.requests] == ["POST", "DELETE"]
    assert "journal/0000000000000001" not in keys(hurt_store)


def test_key_that_cannot_be_deleted_raises(hurt_store: S3Store, proxy: FaultProxy) -> None:
    answer = "<DeleteResult>" + FAILED.format(name="journal/1", code="AccessDenied") + "</DeleteResult>"
    proxy.hurt("POST", r"\?delete", Harm.ANSWERED, status=200, body=answer.encode())
    proxy.hurt("DELETE", "", Harm.ERROR_BEFORE, status=403, code="AccessDenied")
    with pytest.raises(StoreDenied, match=r"cannot delete s3://.*journal/1: AccessDenied.*Allow s3:DeleteObject"):
        hurt_store.delete(["journal/0", "journal/1", "journal/2"])


@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (405, "MethodNotAllowed"), (504, "Slow")])
def test_keys_are_deleted_singly_without_batch_deletion(
    hurt_store: S3Store, proxy: FaultProxy, status: int, code: str
) -> None:
    filled = fill(hurt_store, 3)
    proxy.hurt("POST", r"\?delete", Harm.ERROR_BEFORE, times=9, status=status, code=code)
    hurt_store.delete([*filled, "absent"])
    assert keys(hurt_store) == []


# -- uploads -------------------------------------------------------------------------------------------------------------


def begin_upload(store: S3Store, key: str) -> None:
    client: Any = s3_module.clients(store.settings).patient
    client.create_multipart_upload(Bucket=store.bucket, Key=f"{store.prefix}{key}")


def test_upload_that_another_process_ends_first_has_ended(hurt_store: S3Store, proxy: FaultProxy) -> None:
    """A request whose answer was lost is sent again, and the second answer is the same."""
    begin_upload(hurt_store, "rows/part-0")
    proxy.hurt("DELETE", "uploadId", Harm.ERROR_BEFORE, status=404, code="NoSuchUpload")
    hurt_store.end_uploads(["rows/part-0"])


def test_uploads_end_in_a_service_that_lists_those_of_an_exact_name_only(
    hurt_store: S3Store, proxy: FaultProxy
) -> None:
    """As MinIO: asked for the uploads below a prefix, it lists none."""
    for key in ("rows/part-0", "rows/day=1/part-1", "rows/part-00"):
        begin_upload(hurt_store, key)
    nothing = b"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"
    proxy.hurt("GET", r"[?&]uploads(?!.*prefix=[^&]*part-)", Harm.ANSWERED, times=9, status=200, body=nothing)
    hurt_store.end_uploads(["rows/part-0", "rows/day=1/part-1", "rows/absent"])
    proxy.heal()
    listed = s3_module.clients(hurt_store.settings).patient.list_multipart_uploads(Bucket=hurt_store.bucket)
    assert [upload["Key"] for upload in listed["Uploads"]] == ["ckp/rows/part-00"]  # nobody asked for it


@pytest.mark.parametrize(("method", "where"), [("GET", "uploads"), ("DELETE", "uploadId")])
def test_missing_right_to_end_uploads_is_named(hurt_store: S3Store, proxy: FaultProxy, method: str, where: str) -> None:
    begin_upload(hurt_store, "rows/part-0")
    proxy.hurt(method, where, Harm.ERROR_BEFORE, status=403, code="AccessDenied")
    with pytest.raises(
        StoreDenied, match=r"cannot end uploads below s3://.*: AccessDenied.*Allow s3:AbortMultipartUpload"
    ):
        hurt_store.end_uploads(["rows/part-0"])


# -- clients -------------------------------------------------------------------------------------------------------------


def test_equal_settings_share_clients_in_all_threads(s3: S3Server, s3_store: S3Store) -> None:
    made = []
    barrier = threading.Barrier(8)
    settings = s3.settings(region_name="eu-central-1")

    def make(_: int) -> None:
        barrier.wait(30)
        made.append(clients(settings))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(make, range(8)))
    assert len({id(pair) for pair in made}) == 1
    assert clients(s3.settings(region_name="eu-central-1")) is made[0]
    assert clients(s3_store.settings) is not made[0]


def clients(settings: S3Settings) -> object:
    return s3_module.clients(settings)


def test_forked_child_makes_its_own_clients(s3_store: S3Store) -> None:
    """A forked child inherits sockets that its parent uses, and perhaps a held lock."""
    s3_store.create("parent", b"x")
    results = fork.Queue()

    def child() -> None:
        fresh = not s3_module._made
        results.put((fresh, s3_store.create("child", b"y"), s3_store.read("parent")))

    with s3_module._making:
        process = fork.Process(target=child)
        process.start()
    try:
        assert results.get(timeout=60) == (True, Put.STORED, b"x")
    finally:
        process.kill()
        process.join(10)
    assert s3_store.read("child") == b"y"


def test_missing_boto3_names_the_package_to_install() -> None:
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from airflow_checkpoint_provider.storage import open_store\n"
        "store = open_store('s3://lake/ckp')\n"
        "try: store.read('a')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith(
        "NotInstalled checkpoints in S3 need boto3, which cannot be imported in this Python"
    ), done.stderr
    assert "pip install 'airflow-checkpoint-provider[s3]'" in done.stdout


@pytest.mark.parametrize("odd", ["..", ".", "a/../b", "./c", "d//e", "f/", "..\x01/g"])
def test_key_that_a_store_cannot_use_is_left_out_of_listings(s3_store: S3Store, odd: str) -> None:
    """Anybody with access to the bucket can write it, and no key of this package looks like that."""
    s3_store.create("here/offsets/.x.crc", b"x")
    s3_store.create("here/offsets/0", b"x")
    client = s3_module.clients(s3_store.settings).patient
    client.put_object(Bucket=s3_store.bucket, Key=f"{s3_store.prefix}here/offsets/{odd}", Body=b"x")
    listed = [*keys(s3_store), *s3_store.hidden("here/offsets"), *(f"here/{name}" for name in s3_store.folders("here"))]
    assert set(listed) <= {"here/offsets/0", "here/offsets/.x.crc", "here/offsets", "here/offsets/f", "here/offsets/a"}
    s3_store.delete(listed)
    location = Location(s3_store, "here")
    delete_location(location)
    assert keys(s3_store) == []
