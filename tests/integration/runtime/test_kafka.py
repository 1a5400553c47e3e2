"""Queries that read Kafka or write to it, with a broker that is killed, and one that has forgotten rows. Runs on Linux."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli.lists import list_
from airflow_checkpoint_provider.cli.show import show
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.location.fence import newest_batch
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.keys import History
from tests.integration.runtime.goings_back import restore, saved
from tests.integration.runtime.plain_queries import location_of
from tests.integration.runtime.preflights import preflight
from tests.integration.runtime.streams import (
    blind,
    ending,
    exact,
    has_batches,
    has_committed,
    holding,
    launches,
    locations,
    newest,
    running_forever,
    saved_query,
    taking_over,
)
from tests.support.jars import NoJars
from tests.support.kafka import Kafka
from tests.support.processes import free_port
from tests.support.runs import Home
from tests.support.streams import ROWS, expected, row, rows_in
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PARTITIONS = 2
PASSWORD = "pa55word"
WITH_PASSWORD = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="{PASSWORD}";'
    ),
}
IMPATIENT = {
    "kafka.default.api.timeout.ms": "4000",
    "kafka.request.timeout.ms": "3000",
    "fetchOffset.numRetries": "1",
}
IN_PAIRS = json.dumps({"minOffsetsPerTrigger": str(2 * ROWS)})
"""Options of a source that begins no batch before the rows of two files are there."""
_topics = itertools.count(1)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    try:
        broker = Kafka(tmp_path_factory.mktemp("kafka"))
    except NoJars as error:
        pytest.skip(str(error))
    with broker:
        yield broker


@pytest.fixture
def topic(kafka: Kafka, stream: Home) -> str:
    """Return a topic that the streaming job reads: the rows of an even file are in one partition, those of an odd one in the other."""
    name = f"rows{next(_topics)}"
    kafka.create(name, PARTITIONS)
    stream.env |= kafka.environment() | {"STREAM_TOPIC": name}
    return name


def send(kafka: Kafka, topic: str, *files: int) -> None:
    """Send what would be the rows of files."""
    for file in files:
        kafka.send(topic, (json.dumps(row(file, number)) for number in range(ROWS)), file % PARTITIONS)


def begun(home: Home, batch: int) -> Callable[[], bool]:
    """Ask whether a batch has begun in the newest location."""
    return lambda: (
        Location(home.store, f"{History('stream').prefix}/{locations(home)[-1]}").batches("offsets")[-1] == batch
    )


def test_killed_query_goes_on_exactly(kafka: Kafka, topic: str, stream: Home) -> None:
    """The batch in which it was killed runs again with the same offsets, though more rows have arrived. A snapshot holds its offsets."""
    hold = holding(stream)
    running_forever(stream, STREAM_KAFKA_OPTIONS=IN_PAIRS)
    send(kafka, topic, 0, 1)
    with stream.started() as killed:
        wait_until(has_batches(stream, 1), 120, killed.said)
        hold.touch()
        send(kafka, topic, 2, 3)
        wait_until(begun(stream, 1), 120, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    hold.unlink()
    send(kafka, topic, *range(4, 8))
    ending(stream)
    del stream.env["STREAM_KAFKA_OPTIONS"]
    again = stream.run()
    assert again.code == 0, again.log
    assert "repeats batch 1, which an earlier attempt began" in again.log
    assert exact(stream, 8)
    query = saved_query(stream)
    assert (query.batch, json.loads(query.sources["0"])) == (3, {topic: {"0": 4 * ROWS, "1": 4 * ROWS}})


def test_query_that_was_killed_before_its_first_batch_reads_what_came_since(
    kafka: Kafka, topic: str, stream: Home
) -> None:
    """With ``startingOffsets=latest``, Spark writes where the query begins, and then what its first batch reads."""
    kafka.create(f"{topic}-out")
    running_forever(stream, STREAM_SINK="kafka", STREAM_KAFKA_OPTIONS=json.dumps({"startingOffsets": "latest"}))
    send(kafka, topic, 0)
    with stream.started() as killed:
        wait_until(has_committed(stream, 0), 120, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    location = newest(stream)
    begins = location.read("sources/0/0")
    assert f'{{"{topic}":{{"0":{ROWS},"1":0}}}}'.encode() in begins
    for log in ("offsets", "commits"):
        location.store.delete_under(location.key_of(log))  # as if it had been killed a moment earlier
    send(kafka, topic, 1, 2)
    ending(stream)
    again = stream.run()
    assert again.code == 0, again.log
    assert sorted(written(kafka, topic)) == expected(3)[ROWS:]


def test_start_behind_rows_that_kafka_has_forgotten_is_refused_with_numbers(
    kafka: Kafka, topic: str, stream: Home, tmp_path: Path
) -> None:
    """So is a restore of an older checkpoint, and another job that starts from it. The newest checkpoint has all its rows."""
    for files in ((0, 1), (2, 3)):
        send(kafka, topic, *files)
        ended = stream.run()
        assert ended.code == 0, ended.log
    newest, oldest = (taken.id for taken in stream.coordinator().state.newest_first())
    send(kafka, topic, 4, 5)
    kafka.forget(topic, 40, partition=1)
    restore(stream, oldest, rewind_sink=True)
    before = locations(stream)
    refused = stream.run()
    assert refused.code != 0
    gone = f"{topic}-1 begins with offset 40, and the query reads on at 30: 10 offsets are gone."
    assert f"query 'rows': Kafka does not have all rows since batch 0: {gone} The query was not started" in refused.log
    assert "[CKP405]" in refused.log
    assert locations(stream) == before
    fork = Home(tmp_path / "fork", "stream.py")
    fork.env |= stream.env | {"STREAM_RESTORE": str(stream.coordinator().keys.pointer(stream.store.uri, oldest))}
    elsewhere = fork.run()
    assert elsewhere.code != 0
    assert gone in elsewhere.log
    assert rows_in(fork.out) == []
    assert exact(stream, 4)
    restore(stream, newest, rewind_sink=True)
    again = stream.run()
    assert again.code == 0, again.log
    assert exact(stream, 6)


def test_start_on_a_topic_that_was_made_anew_is_refused_with_numbers(kafka: Kafka, topic: str, stream: Home) -> None:
    send(kafka, topic, 0, 1)
    first = stream.run()
    assert first.code == 0, first.log
    kafka.delete(topic)
    gone = stream.run()
    assert gone.code != 0
    for partition in (0, 1):
        told = f"{topic}-{partition} is not there, or the source does not name it (the query reads on at offset 30)"
        assert told in gone.log
    kafka.create(topic, PARTITIONS)
    kafka.send(topic, ["{}"])
    anew = stream.run()
    assert anew.code != 0
    assert (
        f"{topic}-0 ends before offset 1, and the query reads up to 30: the topic was created again, or has lost its newest rows"
        in anew.log
    )
    stream.env["STREAM_KAFKA_OPTIONS"] = json.dumps({"failOnDataLoss": "false"})
    allowed = stream.run()
    assert "Spark skips them, because failOnDataLoss=false" in allowed.log


def test_query_that_runs_already_is_not_fenced_if_kafka_lacks_its_rows(kafka: Kafka, topic: str, stream: Home) -> None:
    uri, location = location_of(stream)
    send(kafka, topic, 0, 1)
    stream.env["STREAM_PLAIN"] = uri
    plain = stream.run()
    assert plain.code == 0, plain.log
    del stream.env["STREAM_PLAIN"]
    stream.env["STREAM_ADOPT"] = uri
    send(kafka, topic, 2)
    kafka.forget(topic, 40)
    refused = stream.run()
    assert "[CKP405]" in refused.log
    assert newest_batch(location) == (0, False)
    stream.env["STREAM_KAFKA_OPTIONS"] = json.dumps({"failOnDataLoss": "false"})
    allowed = stream.run()
    assert allowed.code == 0, allowed.log
    assert newest_batch(location) == (0, True)
    assert rows_in(stream.out) == [*expected(2), *expected(3)[2 * ROWS + 10 :]]


def test_topic_that_comes_later_must_have_its_first_row(kafka: Kafka, topic: str, stream: Home) -> None:
    """Else Spark begins a batch there, and fails. With ``failOnDataLoss=false`` it reads what is left."""
    send(kafka, topic, 0, 1)
    first = stream.run()
    assert first.code == 0, first.log
    other = f"{topic}-more"
    kafka.create(other)
    kafka.send(other, (json.dumps(row(2, number)) for number in range(ROWS)))
    kafka.forget(other, 10)
    both = {"subscribe": f"{topic},{other}"}
    stream.env["STREAM_KAFKA_OPTIONS"] = json.dumps(both)
    refused = stream.run()
    assert refused.code != 0
    assert f"{other}-0 begins with offset 10, and the query reads on at 0: 10 offsets are gone" in refused.log
    stream.env["STREAM_KAFKA_OPTIONS"] = json.dumps(both | {"failOnDataLoss": "false"})
    allowed = stream.run()
    assert allowed.code == 0, allowed.log
    assert rows_in(stream.out) == [*expected(2), *expected(3)[2 * ROWS + 10 :]]


def test_preflight_asks_kafka_as_a_start_does(
    kafka: Kafka, topic: str, stream: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It refuses what a start would refuse. That a topic is gone, ``failOnDataLoss=false`` does not mend: Spark fails. Where no broker
    answers it says so, and shows no password.
    """

    def compared(**options: str) -> tuple[int, str]:
        stream.env["STREAM_KAFKA_OPTIONS"] = json.dumps(options)
        return preflight(stream, monkeypatch), capfd.readouterr().out

    send(kafka, topic, 0, 1)
    ended = stream.run()
    assert ended.code == 0, ended.log
    code, told = compared()
    assert (code, told.split()) == (0, ["QUERY", "FITS", "DIFFERS", "rows", "ok"])
    send(kafka, topic, 2, 3)
    kafka.forget(topic, 40, partition=1)
    since = "Kafka does not have all rows since batch 0:"
    gone = f"{since} {topic}-1 begins with offset 40, and the query reads on at 30: 10 offsets are gone"
    code, told = compared()
    assert (code, told.splitlines()[1]) == (3, f"rows   no    {gone}")
    code, told = compared(failOnDataLoss="false")
    assert (code, told.splitlines()[1]) == (
        0,
        f"rows   ok    {gone}. Spark skips them, because failOnDataLoss=false",
    )
    kafka.delete(topic)
    no_topic, no_partition = (
        f"{topic}-{number} is not there, or the source does not name it (the query reads on at offset 30)"
        for number in range(PARTITIONS)
    )
    added = f"{topic}-more"
    code, told = compared(failOnDataLoss="false", subscribe=f"{topic}, {added}")
    never = f"{added}-0 is not there, or the source does not name it (the query reads on at offset 0)"
    assert (code, told.splitlines()[1]) == (3, f"rows   no    {since} {no_topic}, {no_partition}, {never}")
    kafka.create(topic)
    code, told = compared()
    anew = f"{topic}-0 ends before offset 0, and the query reads up to 30: the topic was created again, or has lost its newest rows"
    assert (code, told.splitlines()[1]) == (3, f"rows   no    {since} {anew}, {no_partition}")
    nobody = {"kafka.bootstrap.servers": f"127.0.0.1:{free_port()}"}
    stream.env["STREAM_KAFKA_OPTIONS"] = json.dumps(IMPATIENT | WITH_PASSWORD | nobody)
    assert preflight(stream, monkeypatch) == 1
    said = capfd.readouterr()
    assert "rows   unknown  query 'rows': Kafka does not say which rows it has (org.apache.kafka" in said.out
    assert "[CKP406]" in said.err
    assert PASSWORD not in said.out + said.err


def test_list_says_which_checkpoints_can_be_replayed(kafka: Kafka, topic: str, stream: Home) -> None:
    """The driver looks at the earliest offsets when it starts, and every minute. Its heartbeat keeps them when it has ended."""
    send(kafka, topic, 0, 1)
    ended = stream.run()
    assert ended.code == 0, ended.log
    assert replayable(stream, 1) == (True,)
    running_forever(stream)
    send(kafka, topic, 2, 3)
    with stream.started() as killed:
        wait_until(has_batches(stream, 2), 120, killed.said)
        number = saved(stream, killed)
        wait_until(lambda: replayable(stream, 1, number) == (True, True), 200, killed.said)
        kafka.forget(topic, 40, partition=1)
        wait_until(lambda: replayable(stream, 1, number) == (False, True), 200, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    assert replayable(stream, 1, number) == (False, True)
    lines = show(stream.store, "stream", None, "chk-1", utc_now()).lines or []
    assert f"  needs       {topic}-0 from offset 30, {topic}-1 from offset 30" in lines
    assert any(
        line.endswith(f"{topic}-1 begins with offset 40, and the query reads on at 30: 10 offsets are gone")
        for line in lines
    )


def replayable(home: Home, *numbers: int) -> tuple[bool | None, ...]:
    """Return what ``checkpoints list`` says of checkpoints."""
    rows = {row["id"]: row["replayable"] for row in list_(home.store, "stream", None, 100).data}
    return tuple(rows[number] for number in numbers)


def test_killed_batch_of_the_kafka_sink_is_there_at_least_once(kafka: Kafka, topic: str, stream: Home) -> None:
    """One of its two tasks has written its rows. They are written again; no other row is, and none is lost."""
    kafka.create(f"{topic}-out")
    hold = holding(stream)
    running_forever(stream, STREAM_SINK="kafka", STREAM_HOLD_PARTITION="1", STREAM_KAFKA_OPTIONS=IN_PAIRS)
    send(kafka, topic, 0, 1)
    with stream.started() as killed:
        wait_until(lambda: len(written(kafka, topic)) == 2 * ROWS, 120, killed.said)
        hold.touch()
        send(kafka, topic, 2, 3)
        wait_until(lambda: len(written(kafka, topic)) == 3 * ROWS, 120, killed.said)
        killed.send(signal.SIGKILL)
        killed.wait()
    twice = written(kafka, topic)[2 * ROWS :]
    hold.unlink()
    send(kafka, topic, 4, 5)
    ending(stream)
    del stream.env["STREAM_KAFKA_OPTIONS"]
    again = stream.run()
    assert again.code == 0, again.log
    assert "writes to kafka: it gets the rows of the batch that had begun again after a restart" in again.log
    assert sorted(written(kafka, topic)) == sorted([*expected(6), *twice])


def test_batch_of_a_zombie_is_in_the_kafka_sink_twice_and_nothing_else_is(
    kafka: Kafka, topic: str, stream: Home
) -> None:
    """It sleeps in the middle of its batch while another driver writes that one and all others. When it wakes it finishes the batch,
    and finds the fence after it. The query goes on.
    """
    tries = launches(stream)
    kafka.create(f"{topic}-out")
    hold = holding(stream)
    blind(stream, STREAM_SINK="kafka", STREAM_HOLD_PARTITION="1", STREAM_KAFKA_OPTIONS=IN_PAIRS)
    del stream.env["STREAM_STATE"]
    send(kafka, topic, 0, 1)
    with stream.started(confs=tries.plan()) as zombie:
        wait_until(has_committed(stream, 0), 120, zombie.said)
        fenced = newest(stream)
        hold.touch()
        send(kafka, topic, 2, 3)
        wait_until(lambda: len(written(kafka, topic)) == 3 * ROWS, 120, zombie.said)
        zombie.send(signal.SIGSTOP)
        send(kafka, topic, 4, 5)
        taking_over(stream)
        del stream.env["STREAM_KAFKA_OPTIONS"]
        ended = stream.run(confs=tries.plan(2))
        assert ended.code == 0, ended.log
        hold.unlink()
        zombie.send(signal.SIGCONT)
        assert zombie.wait().code == 79, zombie.said()
    assert newest_batch(fenced) == (1, True)
    again = [id_ for file in (2, 3) for id_ in range(file * ROWS, (file + 1) * ROWS)]
    assert sorted(written(kafka, topic)) == sorted([*expected(6), *again])
    send(kafka, topic, 6, 7)
    followed = stream.run()
    assert followed.code == 0, followed.log
    assert sorted(written(kafka, topic)) == sorted([*expected(8), *again])


def written(kafka: Kafka, topic: str) -> list[int]:
    """Return the ids that the sink has written."""
    return [json.loads(value)["id"] for value in kafka.values(f"{topic}-out")]


def test_query_goes_on_exactly_when_its_broker_is_back(kafka: Kafka, topic: str, stream: Home) -> None:
    """The query fails when the broker does not answer. So does a start meanwhile: another try may help."""
    running_forever(stream, STREAM_KAFKA_OPTIONS=json.dumps(IMPATIENT))
    send(kafka, topic, 0, 1)
    with stream.started() as running:
        wait_until(has_batches(stream, 1), 120, running.said)
        send(kafka, topic, 2, 3)
        kafka.kill()
        failed = running.wait()
    assert failed.code not in (0, 3), failed.log
    stream.env["STREAM_KAFKA_OPTIONS"] = json.dumps(IMPATIENT | WITH_PASSWORD)
    refused = stream.run()
    assert refused.code != 0
    assert "Kafka does not say which rows it has (org.apache.kafka.common.errors.TimeoutException" in refused.log
    assert "[CKP406]" in refused.log
    assert PASSWORD not in refused.log
    stream.env["STREAM_KAFKA_OPTIONS"] = json.dumps(IMPATIENT)
    kafka.start()
    send(kafka, topic, 4, 5)
    ending(stream)
    again = stream.run()
    assert again.code == 0, again.log
    assert exact(stream, 6)
