"""For all tests: a home for Airflow, the commands beside the interpreter, an S3 service, and who shares a worker. Runs anywhere."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import secrets
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from tests.support import faults
from tests.support.drivers import quick_jvms
from tests.support.faults import Time

if TYPE_CHECKING:
    from tests.support.s3server import S3Server

# In a module beside the tests, an assertion that fails shows its values, too.
pytest.register_assert_rewrite("tests.e2e", "tests.integration", "tests.unit")

_home = tempfile.TemporaryDirectory(prefix="airflow-home-")
os.environ["AIRFLOW_HOME"] = _home.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ |= quick_jvms()
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

os.environ.setdefault("FUZZ_SEED", secrets.token_hex(4))  # the workers of pytest-xdist get it, too

MACHINES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL")
_numbers = itertools.count(1)

ONE_AIRFLOW = "tests/e2e/"
SPREAD = tuple(f"tests/integration/runtime/test_{name}.py" for name in ("each_kill", "query_states"))
"""Tests of a minute or more, each with drivers of its own: each goes to the next free worker."""
SESSIONS = 2
"""Tests in process share so many sessions of Spark, each in one worker: a session is slow until its JVM has met most of Spark's code."""
TAKES_A_SESSION = re.compile(r": (SparkSession|Script|Launch)\b")
"""The fixtures that bring the session, by their types."""
AIRFLOW_OF_ITS_OWN = tuple(f"tests/e2e/test_{name}.py" for name in ("demo", "first_job", "on_yarn", "pages"))


def pytest_report_header() -> str:
    """Return the seed of the slow fuzz tests. With the same ``FUZZ_SEED`` they attack with the same inputs again."""
    return f"FUZZ_SEED={os.environ['FUZZ_SEED']}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among thousands of tests: it takes seconds while they are collected, and part of each test after that."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist, tests run in one process
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``pytest -n``: give a worker one file of tests at a time. All that share an Airflow or a session of Spark are one file."""
    from xdist.scheduler import LoadScopeScheduling

    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = _file
    return scheduling


def _file(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if file in SPREAD:
        return nodeid
    if _is_in_process(file):
        return f"session {zlib.crc32(file.encode()) % SESSIONS}"
    return ONE_AIRFLOW if file.startswith(ONE_AIRFLOW) and file not in AIRFLOW_OF_ITS_OWN else file


@functools.cache
def _is_in_process(file: str) -> bool:
    """Return whether tests of a file share a session of Spark. Files whose tests only start drivers share nothing."""
    if not file.startswith("tests/integration/"):
        return False
    return bool(TAKES_A_SESSION.search((Path(__file__).parents[1] / file).read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    from botocore.loaders import JSONFileLoader

    from tests.support.s3server import S3Server

    # Every boto3 session parses the description of S3 again, which is most of a test's time: parse it once per process.
    load = functools.cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: load(path))
        with S3Server() as server:
            yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """As it was at first, whatever the test makes of it; and nothing of this machine's own settings for AWS."""
    for name in MACHINES:
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    _forget_what_the_environment_said()
    before = dict(vars(s3_server)), dict(s3_server.keys)
    s3_server.requests.clear()
    yield s3_server
    vars(s3_server).update(before[0])
    s3_server.keys = before[1]


def _forget_what_the_environment_said() -> None:
    """Clients are kept by their settings; to those without settings, each test's environment is another."""
    from airflow_checkpoint_provider.storage import S3Settings, s3

    s3._made.pop(S3Settings(), None)


@pytest.fixture
def bucket(s3: S3Server) -> str:
    name = f"lake-{next(_numbers)}"
    s3.make_bucket(name)
    s3.requests.clear()
    return name


@pytest.fixture(autouse=True)
def _forget_masks() -> Iterator[None]:
    """Let Airflow forget the secrets that a test has shown it: for each new one, it compiles the pattern of all of them again."""
    yield
    for maskers in ("airflow.sdk._shared.secrets_masker", "airflow._shared.secrets_masker"):
        if module := sys.modules.get(maskers):
            module.reset_secrets_masker()


@pytest.fixture
def virtual_time() -> Iterator[Time]:
    with faults.virtual_time() as time:
        yield time


@pytest.fixture
def fast_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare a driver dead after 0.3 s without a beat; watch a driver elsewhere for 0.15 s."""
    monkeypatch.setenv(VARIABLE, "0.05")
