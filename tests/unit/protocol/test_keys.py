"""Keys made of names stay below the root and hold no special characters of Hadoop (docs/inside/formats.md). Runs anywhere."""

from __future__ import annotations

import posixpath
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_checkpoint_provider.errors import InvalidName
from airflow_checkpoint_provider.protocol.keys import (
    LONGEST_NAME,
    History,
    Keys,
    Pointer,
    SavepointPointer,
    beat_number,
    check_job_id,
    check_prefix,
    check_uid,
    checkpoint_id,
    file_set_epoch,
    file_set_path,
    is_attempt_beat,
    is_job_id,
    job_id_of,
    pointer_of,
    safe_token,
    savepoint_name,
    time_in,
)
from airflow_checkpoint_provider.storage.base import checked

TOKEN = re.compile(r"[A-Za-z0-9~][A-Za-z0-9._~-]*")

names = st.text(min_size=1) | st.sampled_from(
    [
        *(
            "..",
            ".",
            "-",
            "_",
            "~",
            "/",
            "\\",
            "a/b",
            "../../etc",
            "%2e%2e",
            "a=b",
            "a:b",
            "{a,b}",
            "*",
            "a b",
            "\0",
            "\n",
            "~2e",
            "~.",
        ),
        *(
            "scheduled__2026-11-20T00:00:00+00:00",
            "manual__2026-11-20",
            "Größe",
            "a" * 200,
            "a" * 201,
            "ä" * 100,
            "Zeit/" * 90,
        ),
    ]
)


@given(names)
def test_token_is_one_plain_segment(name: str) -> None:
    token = safe_token(name)
    assert TOKEN.fullmatch(token)
    assert len(token) <= LONGEST_NAME
    assert "/" not in token
    assert token not in (".", "..")
    assert not set(token) & set(":%={}*? \\")


@given(st.lists(names, min_size=2, max_size=20, unique=True))
@example(["~", "~7e", "~7e7e"])
@example([".a", "~2ea", "~7e2ea"])
@example(["a" * 200, "a" * 201, "a" * 202])
@example(["/" * 67, "/" * 68, "~2f" * 67])
def test_no_two_names_share_a_token(several: list[str]) -> None:
    assert len({safe_token(name) for name in several}) == len(several)


@given(names, names, names | st.none(), names, st.integers(1, 10**6))
def test_no_key_leaves_the_root(job: str, run: str, item: str | None, uid: str, epoch: int) -> None:
    keys = Keys(History(job, run, item).prefix)
    for key in (
        keys.entry(epoch),
        keys.attempt_beat(epoch),
        keys.launch_beat(epoch),
        keys.driver_beat(epoch),
        keys.acknowledgement(epoch, uid),
        keys.seal(epoch),
        keys.file_set(file_set_path(uid, epoch, "n0nce")),
    ):
        assert checked(key) == key
        assert posixpath.normpath(f"/root/{key}") == f"/root/{key}"
        assert key.startswith(f"{keys.prefix}/")


@given(names, st.integers(1, 10**9), st.text(alphabet="0123456789abcdef", min_size=32, max_size=32))
def test_path_of_a_file_set_holds_the_epoch_of_its_attempt(uid: str, epoch: int, nonce: str) -> None:
    assert file_set_epoch(file_set_path(uid, epoch, nonce)) == epoch


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("orders", "orders"),
        ("Orders-2.final_copy", "Orders-2.final_copy"),
        ("2026-11-20", "2026-11-20"),
        ("scheduled__2026-11-20T00:00:00+00:00", "scheduled__2026-11-20T00~3a00~3a00~2b00~3a00"),
        ("a/b", "a~2fb"),
        ("ä", "~c3~a4"),
        ("_metadata", "~5fmetadata"),
        (".hidden", "~2ehidden"),
        ("..", "~2e."),
        ("-", "~2d"),
        ("~", "~7e"),
        ("a" * 200, "a" * 200),
    ],
)
def test_tokens_never_change(name: str, token: str) -> None:
    """Keys are read back by later versions."""
    assert safe_token(name) == token


def test_long_name_keeps_its_beginning_and_a_digest() -> None:
    assert safe_token("run " * 60) == "run~20" * 26 + "run~~.d6a56b0d5612fac73848a9189f9b926d"


def test_name_with_half_a_character_is_refused() -> None:
    """Python makes such names of bytes that are not UTF-8."""
    with pytest.raises(InvalidName, match="is not text in UTF-8"):
        safe_token("run \udcff")


def test_empty_name_is_refused() -> None:
    with pytest.raises(InvalidName, match="at least one character"):
        safe_token("")


@pytest.mark.parametrize(
    ("history", "prefix"),
    [
        (History("orders"), "jobs/orders/job"),
        (History("orders", "day 1"), "jobs/orders/runs/day~201"),
        (History("orders", None, "table/a"), "jobs/orders/job/items/table~2fa"),
        (History("orders", "day-1", "a"), "jobs/orders/runs/day-1/items/a"),
        (History("orders", "job"), "jobs/orders/runs/job"),
    ],
)
def test_prefix_of_a_history(history: History, prefix: str) -> None:
    assert history.prefix == prefix


def test_keys_of_a_history() -> None:
    keys = Keys("jobs/orders/job")
    assert keys.entry(41) == "jobs/orders/job/journal/0000000000000041"
    assert keys.attempt_beat(3) == "jobs/orders/job/heartbeat/3"
    assert keys.launch_beat(3) == "jobs/orders/job/heartbeat/launch-3"
    assert keys.driver_beat(3) == "jobs/orders/job/heartbeat/driver-3"
    assert keys.acknowledgement(7, "") == "jobs/orders/job/chk-7/acks/-"
    assert keys.acknowledgement(7, "payments") == "jobs/orders/job/chk-7/acks/payments"
    assert keys.acknowledgement(7, "-") != keys.acknowledgement(7, "")
    assert keys.seal(7) == "jobs/orders/job/chk-7/_metadata"
    assert keys.file_set(file_set_path("clean", 2, "n0nce")) == "jobs/orders/job/state/clean/2-n0nce"


def test_entries_sort_as_their_numbers_do() -> None:
    keys = [Keys("j").entry(10**exponent) for exponent in range(16)]
    assert keys == sorted(keys)


@pytest.mark.parametrize("job", ["orders", "flights_etl.delays", "a", "0-1", "a" * 200])
def test_valid_job_id_is_accepted(job: str) -> None:
    assert check_job_id(job) == job
    assert safe_token(job) == job


@pytest.mark.parametrize("job", ["", "_a", ".a", "-a", "a b", "a/b", "{{ ds }}", "ä", "a\n", "a" * 201, None, 7])
def test_invalid_job_id_is_refused(job: str) -> None:
    with pytest.raises(InvalidName, match="belongs into scope=") as caught:
        check_job_id(job)
    assert repr(job) in caught.value.message
    assert caught.value.permanent


@pytest.mark.parametrize("uid", ["clean", "Größe", "a b", "1", "a/b", "..", "x" * 200])
def test_valid_uid_is_accepted(uid: str) -> None:
    assert check_uid(uid) == uid


@pytest.mark.parametrize("uid", ["", " ", "a\nb", "\0", "x" * 201, None, 7, "\ud800"])
def test_invalid_uid_is_refused(uid: str) -> None:
    with pytest.raises(InvalidName, match="1 to 200 characters"):
        check_uid(uid)


# -- pointers ------------------------------------------------------------------------------------------------------------

roots = st.sampled_from(
    ["file:///lake/ckp", "memory://m", "s3://lake/a/b", "/plain/path", "relative", "file:///a/jobs/b/job", "/jobs/x"]
)


@given(roots, names, names | st.none(), names | st.none(), st.integers(1, 10**12))
def test_pointer_is_equal_after_parsing_its_text(
    root: str, job: str, run: str | None, item: str | None, number: int
) -> None:
    pointer = Pointer(root, History(job, run, item).prefix, number)
    assert Pointer.parse(str(pointer)) == pointer
    assert Pointer.parse(f"{pointer}/") == pointer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "latest",
        "chk-7",
        "jobs/orders/job/chk-7",
        "file:///lake/jobs/orders/job",
        "file:///lake/jobs/orders/job/chk-",
        "file:///lake/jobs/orders/job/chk-0",
        "file:///lake/jobs/orders/job/chk-07",
        "file:///lake/jobs/orders/job/chk-7/acks",
        "file:///lake/jobs/orders/runs/chk-7",
        "file:///lake/jobs/orders/item/a/chk-7",
        "file:///lake/jobs/../job/chk-7",
        "file:///lake/../secret/jobs/orders/job/chk-7",
        "file:///lake/jobs/orders/runs/../chk-7",
        "file:///lake/savepoints/savepoint-orders-41-9f3c",
    ],
)
def test_text_that_is_no_checkpoint_pointer_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match=r"<root>/jobs/<job>/job/chk-7"):
        Pointer.parse(text)


# -- savepoints ---------------------------------------------------------------------------------------------------------


def test_savepoint_name_holds_job_id_and_nonce() -> None:
    assert savepoint_name("orders", 41, "9f3c") == "savepoint-orders-41-9f3c"
    assert savepoint_name("a/b", 1, "0") == "savepoint-a~2fb-1-0"


@pytest.mark.parametrize(
    ("text", "root", "name"),
    [
        ("s3://lake/savepoint-orders-41-9f3c", "s3://lake", "savepoint-orders-41-9f3c"),
        ("s3://lake/savepoints/savepoint-orders-41-9f3c/", "s3://lake/savepoints", "savepoint-orders-41-9f3c"),
        ("s3a://lake/a/b//_metadata", "s3a://lake/a", "b"),
        ("file:///data/x/_metadata/", "file:///data", "x"),
        ("file:/data/x", "file:/data", "x"),
        ("/data/x", "/data", "x"),
        ("saved/x", "saved", "x"),
        ("./x", ".", "x"),
        ("memory://target/x", "memory://target", "x"),
        ("s3://lake/{a,b}/x*?[1]", "s3://lake/{a,b}", "x*?[1]"),
        ("s3://lake/jobs/orders/job/chk-07", "s3://lake/jobs/orders/job", "chk-07"),
        ("s3://lake/a..b/..c", "s3://lake/a..b", "..c"),
    ],
)
def test_savepoint_pointer_is_read_from_its_directory_or_metadata_file(text: str, root: str, name: str) -> None:
    pointer = pointer_of(text)
    assert pointer == SavepointPointer(root, name)
    assert pointer_of(str(pointer)) == pointer


@pytest.mark.parametrize("end", ["", "/", "//", "/_metadata", "/_metadata/"])
def test_checkpoint_pointer_is_no_savepoint_pointer(end: str) -> None:
    pointer = Pointer("s3://lake", "jobs/orders/job", 7)
    assert pointer_of(f"{pointer}{end}") == pointer


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "//", "latest", "41-9f3c", "chk-7", "savepoint-orders-41-9f3c", "s3://lake", "s3://lake/", "s3://", "s3:",
        "file:///x", "memory://x", "/x", "_metadata", "/_metadata", "/data/..", "/data/../x", "s3://lake/../x/_metadata",
        "/data/.", "/data/x\0",
    ],
)  # fmt: skip
def test_text_that_is_no_pointer_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match="is not a pointer: write <root>/jobs/<job>/job/chk-7 or"):
        pointer_of(text)


HOSTILE = ["a\nb", "a\x1b[2J", "a\x07", "a\u202eb", "a\u2028b", "a\x9b", "a\x7f", "a\u200b", "half \udcff"]


@pytest.mark.parametrize("text", HOSTILE)
def test_pointer_that_is_not_printable_is_refused(text: str) -> None:
    for pointer in (
        f"s3://{text}/jobs/orders/job/chk-7",
        f"s3://lake/{text}/savepoint-orders-7-9f3c",
        f"s3://lake/{text}",
    ):
        with pytest.raises(InvalidName, match="is not a pointer") as refused:
            pointer_of(pointer)
        assert str(refused.value).isprintable()


@pytest.mark.parametrize(("text", "number"), [("7", 7), ("chk-7", 7), ("123456789012345678", 123456789012345678)])
def test_id_of_a_checkpoint(text: str, number: int) -> None:
    assert checkpoint_id(text) == number


@pytest.mark.parametrize(
    "digits", ["0", "007", "٣", "\uff17", "9" * 19, "9" * 5000, "-1", "+1", "1_0", "1.0", " 7", "7\n", ""]
)
def test_number_that_is_no_id_is_refused(digits: str) -> None:
    assert checkpoint_id(digits) is checkpoint_id(f"chk-{digits}") is None
    with pytest.raises(InvalidName):
        Pointer.parse(f"s3://lake/jobs/orders/job/chk-{digits}")


@pytest.mark.parametrize(
    ("run", "time"),
    [
        ("scheduled__2026-11-20", "2026-11-20"),
        ("scheduled__2026-11-20T06:00:00+00:00", "2026-11-20T06:00:00"),
        ("manual__2026-11-20T06:00:00.123+00:00__2026-12-01", "2026-11-20T06:00:00.123"),
        ("by hand", None),
    ],
)
def test_time_in_the_name_of_a_run(run: str, time: str | None) -> None:
    """The time is found in the run id, in its token and in the prefix."""
    assert time_in(History("job", run).prefix) == time_in(safe_token(run)) == time


@pytest.mark.parametrize(
    ("name", "number", "attempt"),
    [
        ("7", 7, True),
        ("launch-8", 8, False),
        ("driver-9", 9, False),
        ("read-me", None, False),
        (".tmp-host-1-a", None, False),
    ],
)
def test_heartbeat_key_holds_number_and_owner(name: str, number: int | None, attempt: bool) -> None:
    key = f"{Keys('jobs/j/job').heartbeats}/{name}"
    assert (beat_number(key), is_attempt_beat(key)) == (number, attempt)


@pytest.mark.parametrize("prefix", ["jobs/a/job", "jobs/a/runs/r~20", "jobs/a/job/items/x"])
def test_prefix_of_a_history_is_known(prefix: str) -> None:
    assert check_prefix(prefix) == check_prefix(f"{prefix}/") == prefix


@pytest.mark.parametrize(
    "prefix", ["", "jobs/a", "jobs/../job", "jobs/a/runs/..", "jobs//job", "x/jobs/a/job", "jobs/a/job\n"]
)
def test_other_text_is_no_prefix(prefix: str) -> None:
    with pytest.raises(InvalidName):
        check_prefix(prefix)


@pytest.mark.parametrize("dag_id", ["_etl", "-etl", ".", "d" * 250, "täglich", "毎日", "日本" * 100, "etl.daily"])
def test_job_id_of_a_task_is_always_a_job_id(dag_id: str) -> None:
    ids = {job_id_of(dag_id, "job"), job_id_of(dag_id, "other"), job_id_of(f"{dag_id}x", "job")}
    assert len(ids) == 3
    assert all(map(is_job_id, ids))
    assert job_id_of(dag_id, "job") == job_id_of(dag_id, "job")


def test_job_id_of_a_task_is_its_name_where_that_is_one() -> None:
    assert job_id_of("etl", "group.job") == "etl.group.job"
    assert job_id_of("_etl", "job").startswith("etl.job-")
    assert job_id_of("etl.group", "job").startswith("etl.group.job-")


@pytest.mark.parametrize("ids", ["etl.daily.load", "a.b.c.d.e", "a..b", "a.b." + "c" * 300, "täglich.um.sieben"])
def test_two_tasks_never_have_one_job_id(ids: str) -> None:
    """However a text is divided into the id of a DAG and the id of a task."""
    dots = [index for index, letter in enumerate(ids) if letter == "." and 0 < index < len(ids) - 1]
    tasks = [(ids[:dot], ids[dot + 1 :]) for dot in dots]
    assert len({job_id_of(*task) for task in tasks}) == len(tasks) > 1
