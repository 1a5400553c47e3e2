"""Log lines about a launch. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.errors import JobAlreadyRunning, TwoOwners
from airflow_checkpoint_provider.text import launch_messages
from tests.support.recorded import Recorded, second_attempt, three_stages
from tests.unit.text.conftest import Golden


def test_lines_of_a_run_that_had_finished(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    second_attempt(recorded)
    golden("finished", launch_messages.finished(recorded.state, recorded.scope))


def test_lines_of_a_superseded_try(golden: Golden) -> None:
    recorded = Recorded()
    recorded.launched("22:00:20")
    recorded.launched("22:10:20", try_number=3)
    golden(
        "superseded",
        [
            launch_messages.superseded(recorded.state, recorded.scope),
            launch_messages.superseded(recorded.state, "another"),
        ],
    )


def test_lines_of_a_refused_launch(golden: Golden) -> None:
    what = "flights_etl.delays, run scheduled__2026-11-20"
    golden(
        "refused",
        [
            *launch_messages.refused(
                what, TwoOwners("tasks a.b and c.d share job id 'x'; give one of them another job_id")
            ),
            "",
            *launch_messages.refused(what, JobAlreadyRunning("run y is alive; stop it first, or wait for it")),
        ],
    )


def test_lines_of_a_suspended_job(golden: Golden) -> None:
    recorded = Recorded(job="etl.orders", scope="")
    recorded.launched("22:00:20", run="x")
    state = replace(
        recorded.state,
        suspended="2026-11-21T02:14:33.560Z (upgrade_orders.stop, file:///lake/savepoints/savepoint-orders-41-9f3c)",
    )
    golden("suspended", launch_messages.suspended(state))


def test_lines_of_an_application_that_did_not_attach(golden: Golden) -> None:
    golden("not_attached", launch_messages.not_attached())
