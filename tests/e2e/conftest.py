"""One Airflow for all tests but that of the demo; they run a few at a time, because each mostly waits. Runs on Linux.

A test that takes ``lab`` and nothing else but its parameters is called in a thread. One that takes ``alone`` waits until all
of these are over: it takes parts of the Airflow away.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.storage import LocalStore, S3Store
from tests.e2e.lab import KEY_ID, SECRET, TOKEN, Lab, adopt_orphans
from tests.support.drivers import WITH_S3A
from tests.support.s3server import Key, S3Server
from tests.support.services.hosts import Host
from tests.support.services.livy import Livy
from tests.support.stack import EXAMPLES, Stack
from tests.support.waiting import wait_until

AT_ONCE = 3
HEARTBEAT = "2"  # seconds
STARTED = pytest.StashKey[dict[str, Future[None]]]()

# What cannot be told apart from this file at parse: each is an import error.
REFUSED = {
    "scope": 'scope="job"',
    "deferrable": 'deferrable=True, deploy_mode="client"',
    "item": 'item=" "',
}
DAG_FILE = """
from airflow.sdk import DAG
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
with DAG("refused_{name}", schedule=None, max_active_runs=2):
    CheckpointedSparkSubmitOperator(task_id="job", application="job.py", {option})
"""


@pytest.fixture(scope="package")  # an idle Airflow takes a third of a core from whatever is tested next
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    adopt_orphans()
    folder = tmp_path_factory.mktemp("lab")
    dags = Path(shutil.copytree(Path(__file__).parent / "dags", folder / "dags"))
    shutil.copytree(EXAMPLES, dags / "examples")
    for name, option in REFUSED.items():
        (dags / f"refused_{name}.py").write_text(DAG_FILE.format(name=name, option=option))
    local = LocalStore(str(folder / "checkpoints"))
    home, database = folder / "airflow", folder / "database"
    database.symlink_to(home)
    for name in ("checkpoints", "code"):
        (folder / name).mkdir(mode=0o755)
    host = Host(folder / "host", variables={"CHECKPOINT_HEARTBEAT_SECONDS": HEARTBEAT})
    with (
        S3Server() as s3,
        host,
        Livy(host) as livy,
        Stack(home, dags, _environment(folder, livy), api_server=_reaching(database)) as stack,
    ):
        bucket = _bucket(s3)
        _connect(stack, bucket)
        wait_until(lambda: _all_are_read(stack, dags), 300, "DAG files are not read")
        yield Lab(stack, local, bucket, folder / "runs", database, livy)


def _all_are_read(stack: Stack, dags: Path) -> bool:
    """Return whether each file of DAGs is read, or is known to be wrong."""
    good = {dag["fileloc"] for dag in stack.client.call("GET", "/api/v2/dags?limit=200")["dags"]}
    files = {str(path) for folder in (dags, dags / "examples") for path in folder.glob("*.py")}
    return len(files - good) == len(REFUSED) == len(stack.client.import_errors())


def _reaching(database: Path) -> dict[str, str]:
    return {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}/airflow.db",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_ENABLED": "False",  # opens the file for each request
    }


def _bucket(s3: S3Server) -> S3Store:
    s3.keys[KEY_ID] = Key(SECRET, token=TOKEN)
    s3.make_bucket("lab")
    return S3Store("lab", "ckp", s3.settings(KEY_ID))


def _connect(stack: Stack, store: S3Store) -> None:
    """In Airflow's database: a connection in the environment would itself be in that of each driver."""
    where = {"root": store.uri, "endpoint_url": store.settings.endpoint_url, "aws_session_token": TOKEN}
    fields = {"conn_type": "checkpoint_storage", "login": KEY_ID, "password": SECRET, "extra": json.dumps(where)}
    stack.client.write("POST", "/api/v2/connections", {"connection_id": "in_s3", **fields})


def _environment(folder: Path, livy: Livy) -> dict[str, str]:
    root = {"root": str(folder / "checkpoints")}
    storage, code = (
        {"conn_type": "checkpoint_storage", "extra": extra} for extra in (root, {**root, "code": str(folder / "code")})
    )
    return {
        "AIRFLOW_CONN_CHECKPOINT_DEFAULT": json.dumps(storage),
        "AIRFLOW_CONN_WITH_CODE": json.dumps(code),
        "AIRFLOW_CONN_LIVY_DEFAULT": livy.connection,
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}',
        "AIRFLOW_CONN_CLUSTER": '{"conn_type": "spark", "host": "spark://127.0.0.1", "port": 7077}',
        "AIRFLOW__CHECKPOINTS__CONNECTIONS": "checkpoint_default,in_s3",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__PARALLELISM": str(2 * AT_ONCE),  # without its supervisor a task runs beside its next try
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "CHECKPOINT_HEARTBEAT_SECONDS": HEARTBEAT,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **WITH_S3A,
    }


@pytest.fixture(scope="session")
def together() -> Iterator[ThreadPoolExecutor]:
    executor = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lab")
    yield executor
    executor.shutdown(wait=False, cancel_futures=True)


@pytest.fixture(autouse=True)
def _together(request: pytest.FixtureRequest) -> None:
    """With the first test that takes ``lab``, all that are called in threads start, in their order."""
    if "lab" in request.fixturenames and STARTED not in request.session.stash:
        lab, executor = request.getfixturevalue("lab"), request.getfixturevalue("together")
        request.session.stash[STARTED] = {
            item.nodeid: executor.submit(item.obj, lab=lab, **_parameters(item))
            for item in request.session.items
            if isinstance(item, pytest.Function) and _takes_the_lab_alone(item)
        }


@pytest.fixture
def alone(lab: Lab, request: pytest.FixtureRequest) -> Lab:
    """The lab, where no other test runs any more."""
    wait(request.session.stash[STARTED].values())
    return lab


def _takes_the_lab_alone(item: pytest.Function) -> bool:
    return {*item._fixtureinfo.argnames} - {*_parameters(item)} == {"lab"}


def _parameters(item: pytest.Function) -> dict[str, Any]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """The test runs already: wait for it."""
    running = pyfuncitem.session.stash.get(STARTED, {}).get(pyfuncitem.nodeid)
    if running is None:
        return None
    running.result()
    return True
