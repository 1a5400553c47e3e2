"""SIGTERM ends a driver in order: proved rows are in a checkpoint, the last entry stands, no row is lost. Runs on Linux."""

from __future__ import annotations

import signal

import pytest

from airflow_checkpoint_provider.storage import S3Store
from tests.integration.runtime.conftest import Undisturbed
from tests.integration.runtime.totals import CLEAN, NAMED, PRICED, TOTALS, stages
from tests.support.launches import Launches
from tests.support.processes import alive
from tests.support.runs import PATIENCE, Home
from tests.support.s3faults import FaultProxy, Harm
from tests.support.s3server import S3Server
from tests.support.waiting import wait_until

ENDED = 128 + signal.SIGTERM
GONE = 5.0  # seconds; after them, Airflow sends SIGKILL


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("action", "point", "submit"),
    [
        ("terminate-group", f"stage/{NAMED}/rows-counted", True),
        # the one above; tests/unit/spark/checkpoints/test_end_in_order.py ends in a checkpoint
        pytest.param("terminate", "checkpoint/2/acknowledged", False, marks=pytest.mark.slow),
    ],
)
def test_rows_that_are_proved_are_saved(home: Home, action: str, point: str, submit: bool) -> None:
    ended = home.run((action, point), submit=submit)
    assert ended.code == ENDED, ended.log
    state = home.coordinator().state
    assert stages(state) == {CLEAN, NAMED}, ended.log
    assert [(attempt.outcome, attempt.exit_code) for attempt in state.attempts] == [("failed", ENDED)]


@pytest.mark.slow  # test_store_that_does_not_answer_holds_no_driver hangs without Spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_store_that_hangs_holds_no_driver(home: Home, s3: S3Server, undisturbed: Undisturbed) -> None:
    assert isinstance(home.store, S3Store)
    tries = Launches(home.store)
    with FaultProxy(s3.url) as proxy:
        held = Launches(S3Store(home.store.bucket, "ckp", s3.settings(endpoint_url=proxy.url)))
        proxy.hurt("PUT", "/chk-2/acks/", Harm.HELD, seconds=300.0)
        with home.started(("time", str(home.folder / "points")), confs=held.plan()) as running:
            wait_until(lambda: any(request.harm for request in proxy.requests), PATIENCE, running.said)
            drivers = running.pythons()
            running.send(signal.SIGTERM)
            wait_until(lambda: not any(map(alive, drivers)), GONE, running.said, every=0.02)
            ended = running.wait()
    assert ended.code == ENDED
    assert "Within 3.0 s, the driver could not write the checkpoint of its newest rows and its last entry" in ended.log
    assert tries.ends() == [(None, None)]
    assert stages(tries.state()) == {CLEAN}
    again = home.run(confs=tries.plan(2))
    assert again.code == 0, again.log
    assert set(again.computed) == {NAMED, PRICED, TOTALS}
    assert again.result["rows"] == undisturbed.ended.result["rows"]
    assert home.report() == undisturbed.report
