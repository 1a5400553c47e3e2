"""Places of adopted queries that only a journal names: nothing is read there. Runs anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import NotNamed
from airflow_checkpoint_provider.location.copying import chain_at
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.query_records import QueryLocation, QueryRecord, Released
from airflow_checkpoint_provider.storage import LocalStore, Store, open_store
from tests.support.s3server import S3Server

KEYS = Keys("jobs/orders/job")


def chain(store: Store, adopted: str, named: str | None = None) -> tuple[Location, ...]:
    locations = (QueryLocation(path="query/rows/1-a", branch=0, adopted=adopted),)
    return chain_at(store, KEYS, QueryRecord(uid="rows", locations=locations), named)


@pytest.fixture
def home(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "ckp"))


@pytest.fixture
def payroll(tmp_path: Path) -> str:
    """The location of another team's query, with its state."""
    LocalStore(tmp_path / "teams").create("payroll/state/0/0/8.delta", b"salaries")
    return f"file://{tmp_path}/teams/payroll"


def test_place_that_only_a_journal_names_is_not_read(home: Store, payroll: str) -> None:
    with pytest.raises(NotNamed, match=rf"Only the journal says so.* write adopt='{payroll}'.*--adopted {payroll} for"):
        chain(home, payroll)


@pytest.mark.parametrize("named", ["{0}x", "{0}/..", "{0}/state"])
def test_script_that_names_another_place_does_not_name_it(home: Store, payroll: str, named: str) -> None:
    with pytest.raises(NotNamed):
        chain(home, payroll, named.format(payroll))


@pytest.mark.parametrize("spelling", ["{0}", "{0}/", "file:{1}", "{1}"])
def test_place_that_the_script_names_is_read(home: Store, payroll: str, spelling: str) -> None:
    named = spelling.format(payroll, payroll.removeprefix("file://"))
    assert chain(home, payroll, named)[-1].sizes() == {"state/0/0/8.delta": 8}


@pytest.mark.parametrize(
    "adopted",
    [
        "file://{0}/ckp/../teams/payroll",
        "file://{0}/ckp-private/payroll",
        "file:///etc",
        "s3://team-b/payroll",
        "memory://team-b/payroll",
        "x:y",
        ":",
    ],
)
def test_place_beside_the_root_is_not_read_however_it_is_written(home: Store, tmp_path: Path, adopted: str) -> None:
    with pytest.raises(NotNamed):
        chain(home, adopted.format(tmp_path))


def test_place_below_the_root_is_read(home: Store, tmp_path: Path) -> None:
    assert chain(home, f"file://{tmp_path}/ckp/old/rows")[-1].uri == f"file://{tmp_path}/ckp/old/rows"


def test_place_in_the_savepoint_roots_is_read_and_no_other(tmp_path: Path, payroll: str) -> None:
    inside = open_store(str(tmp_path / "ckp"), savepoint_roots=[str(tmp_path / "teams")])
    assert chain(inside, payroll)[-1].sizes()
    outside = open_store(str(tmp_path / "ckp"), savepoint_roots=[str(tmp_path / "others")])
    with pytest.raises(NotNamed):
        chain(outside, payroll)
    assert chain(outside, payroll, payroll)[-1].sizes(), "the author of a job has named it"


def test_link_below_the_root_leads_to_no_place_outside(home: Store, tmp_path: Path, payroll: str) -> None:
    (tmp_path / "ckp").mkdir()
    (tmp_path / "ckp/link").symlink_to(tmp_path / "teams")
    with pytest.raises(Exception, match="link"):
        chain(home, f"file://{tmp_path}/ckp/link/payroll")[-1].sizes()


def test_bucket_that_only_a_journal_names_is_not_asked(bucket: str, s3: S3Server) -> None:
    home = open_store(f"s3://{bucket}/ckp", s3=s3.settings())
    with pytest.raises(NotNamed):
        chain(home, f"s3://{bucket}/payroll")
    assert chain(home, f"s3://{bucket}/payroll", f"s3a://{bucket}/payroll")[-1].uri == f"s3://{bucket}/payroll"
    with pytest.raises(NotNamed):
        chain(home, f"s3://{bucket}/ckp-2/payroll")


def test_query_without_an_adopted_place_needs_no_name(home: Store) -> None:
    locations = (QueryLocation(path="query/rows/1-a", branch=0),)
    released = Released(uid="rows", to="file:///new", begun=1, committed=1, locations=locations)
    assert len(chain_at(home, KEYS, released, None)) == 1
