"""The notifier: what it tells of a failed and of a retried task, in the process of the task and in the DAG processor."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG, BaseNotifier, BaseOperator, Connection, task_group
from airflow.sdk.execution_time.context import _preset_connections

from airflow_checkpoint_provider.coordinator.indexes import Indexes, Registration
from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.notifications import CheckpointNotifier
from airflow_checkpoint_provider.notifications import checkpoint as notifications
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator, TriggerCheckpointOperator
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.sensors import CheckpointHealthSensor
from airflow_checkpoint_provider.storage import Store
from tests.support.acting import RUN, Job
from tests.support.faults import Call, Fault, FaultyStore, always
from tests.support.tasks import ti

FAILURE = RuntimeError("attempt 1 failed (exit code 1)")


def operator(**options: Any) -> CheckpointedSparkSubmitOperator:
    with DAG("etl", schedule=None, max_active_runs=1):
        return CheckpointedSparkSubmitOperator(
            **{"task_id": "job", "application": "job.py", "job_id": "orders", "scope": "job", **options}
        )


def context(task: Any = None, error: BaseException | None = FAILURE, **instance: Any) -> dict[str, Any]:
    """Return Airflow's context of a callback. In the DAG processor there is no ``exception``, and no state."""
    task = task or operator()
    about = ti(task.task_id, **{"dag_id": "etl", "max_tries": 2, **instance})
    given = {"task": task, "dag": task.dag, "ti": about, "run_id": RUN, "dag_run": SimpleNamespace(run_id=RUN)}
    return given if error is None else {**given, "exception": error}


def told(given: dict[str, Any]) -> str:
    texts: list[str] = []
    CheckpointNotifier(texts.append)(given)
    (text,) = texts
    return text


def stuck(store: Store) -> Job:
    """Return a job whose first try completed chk-1, and whose second has completed nothing."""
    job = Job(store)
    job.start(1)
    job.take()
    job.end("failed")
    job.start(2)
    job.end("failed")
    return job


# -- the text --------------------------------------------------------------------------------------------------------------


def test_retried_task_is_told(store: Store) -> None:
    stuck(store)
    head, *lines = told(context(try_number=2, state="up_for_retry")).splitlines()
    assert head.startswith(f"RETRY of etl.job, run {RUN}: try 2 of 3 failed ")
    assert head.endswith("[CKP512]")
    by_label = {line[2:14].strip(): line[14:] for line in lines if line[2:14].strip()}
    assert by_label["job"] == f"orders, run {RUN}"
    assert by_label["reason"] == "RuntimeError: attempt 1 failed (exit code 1)"
    assert by_label["checkpoint"].startswith("chk-1, completed 20")
    assert by_label["checkpoint"].endswith(" s ago")
    assert by_label["next"].startswith("the next attempt continues from chk-1, and repeats ")
    assert by_label["no further"] == "1 try in a row has completed no newer checkpoint than chk-1"
    assert by_label["to look"] == f"airflow checkpoints story orders {RUN}"
    assert [line.strip() for line in lines[-2:]] == [
        f"airflow checkpoints show orders {RUN}",
        "airflow checkpoints list orders",
    ]


@pytest.mark.parametrize(
    ("state", "try_number", "word"),
    [
        ("failed", 2, "FAILED"),
        ("up_for_retry", 2, "RETRY"),
        (None, 2, "RETRY"),
        (None, 3, "FAILED"),
        ("running", 3, "FAILED"),
    ],
)
def test_it_knows_whether_another_try_follows(store: Store, state: str | None, try_number: int, word: str) -> None:
    """The policy may have failed a task that has tries left. The DAG processor has no state."""
    assert told(context(try_number=try_number, state=state)).startswith(word)


def test_lost_worker_is_told_from_the_journal(store: Store) -> None:
    job = Job(store)
    job.start(1)
    job.take()
    assert "and may still run. After it, the job continues from chk-1" in told(context(error=None, state="failed"))
    text = told(context(error=None))
    assert "reason      Airflow lost the process of this try, which has reported nothing\n" in text
    assert (
        "attempt 1 has not recorded its end, and may still run. The next try follows it then; else it continues from chk-1"
        in text
    )
    job.end("failed")
    assert "which has reported nothing; attempt 1 failed (exit code 1)" in told(context(error=None))


def test_templates_are_rendered_where_no_task_runs(store: Store) -> None:
    """In the DAG processor the task is as its file says."""
    Job(store, scope="2026-11").start()
    assert "job         orders, run manual__1" in told(
        context(operator(scope="{{ params.month }}")) | {"params": {"month": "2026-11"}}
    )


def test_job_that_never_began_has_no_history(store: Store) -> None:
    assert "  job         has no history yet" in told(context())


def test_task_without_a_checkpoint_repeats_everything(store: Store) -> None:
    job = Job(store)
    job.start()
    job.end("failed")
    text = told(context())
    assert "checkpoint  none is completed" in text
    assert "continues from nothing, and repeats " in text


def test_driver_that_never_attached_repeats_nothing(store: Store) -> None:
    Job(store).plan()
    assert "No driver of this try has attached, so no work is repeated" in told(context())


def test_other_tasks_of_a_job_are_told_too(store: Store) -> None:
    Job(store).start()
    with DAG("etl", schedule=None):
        text = told(context(TriggerCheckpointOperator(task_id="asks", job="orders")))
    assert "FAILED" not in text.splitlines()[0]
    assert "job         orders" in text
    assert "  next " not in text


@pytest.mark.parametrize("fault", [Fault.NOT_SENT, Fault.DENIED])
def test_journal_that_cannot_be_read_still_sends(
    store: Store, faulty: FaultyStore, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    stuck(store)
    faulty.plan = always(fault, "read")
    with caplog.at_level(logging.WARNING):
        text = told(context(operator(checkpoint_conn_id="checkpoint_default")))
    assert "reason      RuntimeError: attempt 1 failed" in text
    assert "its journal cannot be read from here: " in text
    assert "[CKP513]" in text
    assert "to look     airflow checkpoints jobs" in text
    assert any("CKP513" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("kind", ["read", "list"])
def test_store_that_hangs_does_not_keep_the_text_back(
    store: Store, faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Airflow kills the process soon after the task has ended."""
    stuck(store)
    ends = threading.Event()

    def hangs(call: Call) -> Fault:
        if call.kind == kind:
            ends.wait(60)
        return Fault.NONE

    faulty.plan = hangs
    monkeypatch.setattr(notifications, "READ_WITHIN", 0.05)
    try:
        text = told(context(try_number=2, state="failed"))
        (reader,) = (thread for thread in threading.enumerate() if thread.name == notifications.READER)
        assert reader.daemon, "it keeps no process alive"
    finally:
        ends.set()
    reader.join(60)
    assert text.startswith(f"FAILED etl.job, run {RUN}: try 2 of 3 failed")
    assert "reason      RuntimeError: attempt 1 failed" in text
    assert "its journal cannot be read from here: it was not read within 0.05 s" in text
    assert "[CKP613]  [CKP513]" in text


def test_journal_is_read_in_the_context_of_the_caller() -> None:
    """Airflow keeps connections that are being tested there."""
    tested = Connection(conn_id="tested", conn_type="fs")
    token = _preset_connections.set({"tested": tested})
    try:
        assert "Connection 'tested' is of type 'fs'" in told(context(operator(checkpoint_conn_id="tested")))
    finally:
        _preset_connections.reset(token)


def test_task_of_another_package_is_named(store: Store) -> None:
    with DAG("etl", schedule=None):
        plain = BaseOperator(task_id="plain")
    assert "a BaseOperator, which works on no checkpointed job" in told(context(plain))


# -- instances of mapped tasks in the DAG processor ---------------------------------------------------------------------------

LOAD: dict[str, Any] = {
    "task_id": "job",
    "application": "job.py",
    "job_id": "orders",
    "scope": "job",
    "checkpoint_conn_id": "streams",
}
"""The parameters of a mapped task, and of a task in a mapped group."""


@pytest.fixture
def streams(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return the store of the connection ``streams``, the only one that there is."""
    monkeypatch.setenv("AIRFLOW_CONN_STREAMS", os.environ["AIRFLOW_CONN_CHECKPOINT_DEFAULT"])
    monkeypatch.delenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT")
    return store


def by_list(items: Any) -> Any:
    return CheckpointedSparkSubmitOperator.partial(**LOAD).expand(item=items)


def by_keywords(items: Any) -> Any:
    return CheckpointedSparkSubmitOperator.partial(**LOAD).expand_kwargs([{"item": item} for item in items])


def by_params(items: Any) -> Any:
    task = CheckpointedSparkSubmitOperator.partial(**LOAD, item="{{ params.item }}")
    return task.expand(params=[{"item": item} for item in items])


def by_name(items: Any) -> Any:
    return CheckpointedSparkSubmitOperator.partial(**LOAD, item="{{ task.name }}").expand(name=items)


def in_group(items: Any) -> Any:
    @task_group
    def each(item: Any) -> None:
        CheckpointedSparkSubmitOperator(**LOAD, item=item)

    each.expand(item=items)
    return None


def mapped(made: Callable[[Any], Any], items: Any = ("eu", "us")) -> Any:
    with DAG("etl", schedule=None, max_active_runs=1) as dag:
        return made(list(items)) or dag.get_task("each.job")


@pytest.mark.parametrize("made", [by_list, by_keywords, by_params, by_name])
def test_instance_of_a_mapped_task_is_told_where_no_task_runs(streams: Store, made: Callable[[Any], Any]) -> None:
    Job(streams, item="eu").plan()
    Job(streams, item="us").start()
    head, *lines = told(context(mapped(made), error=None, map_index=1)).splitlines()
    assert head.startswith(f"RETRY of etl.job, map index 1, run {RUN}: try 1 of 3 failed ")
    assert lines[0] == f"  job         orders, item us, run {RUN}"
    assert "attempt 1 has not recorded its end" in "".join(lines)


@pytest.mark.parametrize("made", [by_list, in_group])
def test_item_is_that_with_which_the_try_began(streams: Store, made: Callable[[Any], Any]) -> None:
    """Since then, another one was inserted before it in the list."""
    task = mapped(made, ("eu", "asia", "us"))
    Job(streams, item="us").start()
    known = Registration(item="us", generation=0, at="2026-11-20T00:00:00Z")
    Indexes(streams, History("orders"), Token(dag="etl", run=RUN, task=task.task_id)).register(1, 1, known)
    text = told(context(task, map_index=1))
    assert f"{task.task_id}, map index 1, run {RUN}" in text
    assert "job         orders, item us" in text


def test_mapped_sensor_is_told(store: Store) -> None:
    Job(store).start()
    with DAG("watch", schedule=None):
        task = CheckpointHealthSensor.partial(task_id="health", max_age="30 min").expand(job=["payments", "orders"])
    assert "job         orders\n" in told(context(task, map_index=1))


def not_known(_: Any) -> Any:
    return by_list(BaseOperator(task_id="lists").output)


def asks(_: Any) -> Any:
    """Return a mapped task with the connection of its job."""
    job = CheckpointedSparkSubmitOperator(**LOAD)
    return TriggerCheckpointOperator.partial(task_id="asks", job=job).expand(item=BaseOperator(task_id="lists").output)


@pytest.mark.parametrize("made", [not_known, asks])
def test_instance_whose_arguments_are_not_known_is_not_blamed(streams: Store, made: Callable[[Any], Any]) -> None:
    text = told(context(task := mapped(made), map_index=1))
    assert f"etl.{task.task_id}, map index 1, run {RUN}" in text
    assert f"Airflow does not say here what map index 1 of task '{task.task_id}' works on (" in text
    assert "Write this at" not in text
    assert "to look     airflow checkpoints jobs --conn-id streams" in text


def test_mapped_task_of_another_package_is_named() -> None:
    with DAG("etl", schedule=None):
        plain = SmoothOperator.partial(task_id="plain").expand(note=["a", "b"])
    assert "task 'plain' is a SmoothOperator, which works on no checkpointed job" in told(context(plain, map_index=1))


class SmoothOperator(BaseOperator):
    """A task of another package, with a parameter to map."""

    def __init__(self, note: str, **other: Any) -> None:
        super().__init__(**other)
        self.note = note


# -- what is not sent ----------------------------------------------------------------------------------------------------------


def test_secret_in_an_error_is_not_sent(store: Store) -> None:
    text = told(context(error=RuntimeError("cannot read s3a://AKIA:secret@bucket/x\x1b[2J")))
    assert "secret" not in text
    assert "\x1b" not in text


# -- how it is sent ----------------------------------------------------------------------------------------------------------


class Chat(BaseNotifier):
    """A notifier with one template, as those of chat services are."""

    template_fields: Sequence[str] = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.sent = text, list[str]()

    def notify(self, context: Any) -> None:
        self.sent.append(self.text)


def test_templates_of_another_notifier_have_the_text(store: Store) -> None:
    stuck(store)
    chat = Chat("{{ checkpoint_subject }} in {{ run_id }}\n{{ checkpoint_text }}")
    given = context(try_number=2, state="failed")
    CheckpointNotifier(chat)(given)
    (sent,) = chat.sent
    assert sent.startswith(f"FAILED etl.job, run {RUN}: try 2 of 3 failed in {RUN}\nFAILED etl.job")
    assert "checkpoint  chk-1, completed " in sent
    assert "checkpoint_text" not in given, "another callback of the task gets Airflow's context"


def test_each_task_that_one_notifier_tells_of_has_its_own_text(store: Store) -> None:
    """The DAG processor calls it for several tasks in one process."""
    stuck(store)
    notifier = CheckpointNotifier(chat := Chat("{{ checkpoint_subject }}"))
    for number in (2, 3):
        notifier(context(try_number=number, state="failed"))
    assert [text[-len("try 2 of 3 failed") :] for text in chat.sent] == ["try 2 of 3 failed", "try 3 of 3 failed"]


def test_mail_of_airflows_smtp_provider_has_the_text(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck(store)
    mail = SmtpNotifier(
        from_email="airflow@example.com",
        to="on-call@example.com",
        subject="{{ checkpoint_subject }}",
        html_content="<pre>{{ checkpoint_text | e }}</pre>",
    )
    mails: list[tuple[Any, Any]] = []
    monkeypatch.setattr(SmtpNotifier, "notify", lambda self, _: mails.append((self.subject, self.html_content)))
    CheckpointNotifier(mail)(context(try_number=2, state="failed"))
    ((subject, html),) = mails
    assert subject == f"FAILED etl.job, run {RUN}: try 2 of 3 failed"
    assert "checkpoint  chk-1, completed " in html


def test_error_of_the_sender_is_raised(store: Store) -> None:
    """Airflow logs it, and the task ends as it would have."""

    def refuses(_: str) -> None:
        raise OSError("no route to host")

    with pytest.raises(OSError, match="no route"):
        CheckpointNotifier(refuses)(context())


@pytest.mark.parametrize("send", [None, "ops@example.com", SmtpNotifier])
def test_what_cannot_send_is_refused(send: Callable[[str], object]) -> None:
    with pytest.raises(InvalidConfig, match=r"\{\{ checkpoint_text \| e \}\}"):  # it may hold what a stranger wrote
        CheckpointNotifier(send)
