"""The verdict of the retry policy, and the texts of notifications. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

from airflow_checkpoint_provider.errors import StoreUnavailable
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.query_records import QueryLocation, QueryRecord
from airflow_checkpoint_provider.protocol.tries import Tries, tries_of
from airflow_checkpoint_provider.text import restore_age, tries
from airflow_checkpoint_provider.text.tries import FailedTask
from tests.support import histories
from tests.support.recorded import RUN, Recorded, at, three_stages
from tests.unit.text.conftest import Golden

TASK = "flights_etl.delays"
REASON = "AirflowException: attempt 3 failed (exit code 137: SIGKILL)"


def stuck() -> Recorded:
    """Return a history whose first try completed three stages; the two since have completed nothing."""
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("02:51:07", "failed", 137, "task")
    for number, begins, ends in ((2, "03:02:10", "03:12:40"), (3, "03:22:10", "03:33:20")):
        recorded.started(begins, number)
        recorded.ended(ends, "failed", 137, "task")
    return recorded


def tries_in(recorded: Recorded) -> Tries:
    found = tries_of(recorded.state, recorded.token(RUN))
    assert found
    return found


def failed(try_number: int = 3, *, retried: bool = False, reason: str = REASON) -> FailedTask:
    return FailedTask(TASK, RUN, try_number, 4, retried, reason, "streams")


def told(recorded: Recorded, about: FailedTask, time: str = "03:33:30") -> list[str]:
    return tries.notification(about, recorded.state, RUN, tries_in(recorded), at(time))


def test_verdicts_of_the_retry_policy(golden: Golden) -> None:
    recorded = stuck()
    first = Recorded()
    first.started("22:00:20")
    running = tries_in(first)
    first.ended("22:10:00", "failed", 1)
    further = Recorded()
    three_stages(further)
    golden(
        "retry_policy",
        [
            tries.stuck(recorded.state, tries_in(recorded)),
            tries.stuck(first.state, tries_in(first)),
            tries.goes_on(recorded.state, tries_in(recorded), 3),
            tries.goes_on(first.state, running, 3),
            tries.goes_on(further.state, tries_in(further), 3),
            tries.NOT_LAUNCHED,
            tries.cannot_tell("s3://lake/ckp does not answer  [CKP613]"),
        ],
    )


def test_notification_of_a_failed_task(golden: Golden) -> None:
    golden("notification_failed", told(stuck(), failed()))


def test_notification_of_a_retried_task(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("02:51:07", "failed", 137, "task")
    golden("notification_retried", told(recorded, failed(1, retried=True), "02:51:10"))


def test_notification_of_a_stream_whose_queries_go_on(golden: Golden) -> None:
    """They continue after their newest batches, however old the newest checkpoint is."""
    recorded = stuck()
    location = QueryLocation(path="query/orders/3-abc", branch=recorded.state.branch.number)
    stream = replace(recorded.state, queries=(QueryRecord(uid="orders", locations=(location,)),))
    back = replace(stream, branch=replace(stream.branch, rewinds=location.branch + 1))
    tries_of_stream = tries_in(recorded)
    golden(
        "notification_stream",
        [
            *tries.notification(failed(), stream, RUN, tries_of_stream, at("03:33:30")),
            *tries.notification(failed(), back, RUN, tries_of_stream, at("03:33:30")),
            tries.stuck(stream, tries_of_stream),
        ],
    )


def test_notification_says_that_a_newer_checkpoint_adds_nothing() -> None:
    """The timer of a stream takes checkpoints also while the query tries one batch again and again."""
    h = histories.History()
    for number in (1, 2, 3):
        h.streams(number, 6)
    found = tries_of(h.state, histories.token("day-1"))
    told = "\n".join(tries.notification(failed(), h.state, "day-1", found, h.state.at))
    assert "chk-6, completed 2026-11-20 00:22 at " in told
    assert ", 1 min ago. It adds nothing to chk-2, completed 2026-11-20 00:06 at " in told
    assert "2 tries in a row have completed no newer checkpoint than chk-2, and committed no newer batch" in told


def test_notification_of_a_stream_that_never_committed_a_batch() -> None:
    h = histories.History()
    h.started()
    h.timer(-1)
    h.ended("failed")
    found = tries_of(h.state, histories.token("day-1"))
    told = "\n".join(tries.notification(failed(), h.state, "day-1", found, h.state.at))
    assert "It adds nothing to the beginning" in told
    assert "1 try in a row has completed no checkpoint that holds work" in told


def test_notification_of_a_lost_worker(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    lost = failed(1, retried=True, reason="")
    last = failed(4, reason="")
    golden("notification_lost", [*told(recorded, lost, "02:56:10"), *told(recorded, last, "02:56:10")])


def test_commands_name_the_item_of_a_mapped_task() -> None:
    recorded = stuck()
    state, found = replace(recorded.state, item="orders"), tries_in(recorded)
    told = tries.notification(failed(), state, RUN, found, at("03:33:30"))
    assert [line.strip() for line in told[-2:]] == [
        f"airflow checkpoints show {TASK} {RUN} --item=orders",
        f"airflow checkpoints list {TASK} --item=orders",
    ]
    assert f"`airflow checkpoints story {TASK} {RUN} --item=orders`" in tries.stuck(state, found)


def test_notification_without_the_journal(golden: Golden) -> None:
    golden(
        "notification_without_facts", tries.without_facts(failed(), StoreUnavailable("s3://lake/ckp does not answer"))
    )


def test_line_of_an_old_restore_point(golden: Golden) -> None:
    recorded = stuck()
    checkpoint = recorded.state.retained[-1]
    point = recorded.state.restore_point()
    text = restore_age.too_old("flights_etl.delays", point, checkpoint, at("09:33:30"), 3600)
    golden(
        "old_restore_point",
        [
            restore_age.warned(text),
            restore_age.refused(text, "flights_etl.delays", recorded.state),
            restore_age.unknown("orders", Point(pointer="s3://lake/savepoint-orders-7-abc")),
        ],
    )
