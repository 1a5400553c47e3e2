"""A local store with real histories, and the command that reads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from airflow_checkpoint_provider.cli.main import main
from airflow_checkpoint_provider.protocol.commands import LocateQuery
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.storage import LocalStore
from airflow_checkpoint_provider.text.units import NONE
from tests.support.acting import Job
from tests.support.recorded import RUN, Recorded, finished_and_running, three_stages
from tests.unit.cli.kafka_jobs import save

FLIGHTS, ORDERS = "flights_etl.delays", "etl.orders"


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Command = Callable[..., Done]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(str(root))


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one job, of which the older finished and the newer died; and a job whose runs share a history."""
    root = tmp_path_factory.mktemp("written")
    store = LocalStore(str(root))
    died = finished_and_running(store, kib=18)
    died.ended("10:30:00", "failed", 137, "task")
    orders = Recorded(store, job=ORDERS, scope="")
    for hour, day in ((19, "2026-11-19"), (20, "2026-11-20")):
        orders.started(f"{hour}:00:00", run=f"scheduled__{day}")
        orders.value("high_water", day)
        orders.stage("clean", f"{hour}:10:00", f"{hour}:10:02", work_s=540, kib=4)
        orders.ended(f"{hour}:10:03")
    return root


@pytest.fixture
def lake(store: LocalStore, root: Path, written: Path) -> LocalStore:
    shutil.copytree(written, root)
    return store


@pytest.fixture
def running(store: LocalStore) -> Recorded:
    """A driver at its fourth stage; two of three completed checkpoints are kept."""
    recorded = Recorded(store)
    three_stages(recorded)
    return recorded


@pytest.fixture
def job(store: LocalStore) -> Job:
    """``orders`` runs, and completed one checkpoint."""
    job = Job(store)
    job.start()
    job.complete(job.coordinator.trigger(Request(token="barrier 1", barrier="stage 'clean'")))
    return job


@pytest.fixture
def gone_on(job: Job) -> Job:
    """Return a job whose query has a checkpoint after offset 120 of ``clicks``, and has committed batches since."""
    save(job, '{"clicks":{"0":120,"1":7}}', '{"logOffset":3}')
    path = "query/clicks/1-abc"
    job.coordinator.journal.append(
        LocateQuery(epoch=1, uid="clicks", path=path, taken_from=None, begun=-1, committed=-1)
    )
    job.store.create(f"{job.keys.file_set(path)}/commits/9", b"v1")
    return job


@pytest.fixture
def checkpoints(root: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> Done:
        code = main(["--root", str(root), *arguments])
        return Done(code, *capsys.readouterr())

    return run


ABORTED = (
    "chk-4  checkpoint  barrier  scheduled__2026-11-20  1        aborted    stage 'delays'"
    f"   {NONE}         {NONE}                 attempt replaced"
)

__all__ = ["ABORTED", "FLIGHTS", "ORDERS", "RUN", "Command", "Done"]
