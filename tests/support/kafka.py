"""A real broker of Apache Kafka for slow tests: one node, which can be killed and started again. Runs on Linux.

    with Kafka(tmp_path) as kafka:
        kafka.send("orders", 0, ["a row"])

A test speaks to the broker through Kafka's own Java clients, in a JVM beside
it: this project has no client in Python.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyspark
from py4j.java_gateway import JavaGateway

from tests.support.drivers import QUICK_JVM
from tests.support.jars import fetched
from tests.support.processes import free_port
from tests.support.waiting import wait_until

CONNECTOR = (
    "spark-sql-kafka",
    "spark-token-provider-kafka",
    "kafka-clients",
    "commons-pool2",
    "scala-parallel-collections",
)
PY4J = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
START = 120.0  # seconds, for one step; all together take less than ten
ANSWER = 60  # seconds, for one request
TAIL = 2_000  # bytes of a log

CONFIGURATION = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={home}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
# The files of a topic that was deleted.
file.delete.delay.ms=0
# So long its place is kept for a broker that was killed.
broker.session.timeout.ms=5000
broker.heartbeat.interval.ms=1000
"""


class Kafka:
    """``servers`` is the broker's address. All is below ``home``, and nothing outlives this process."""

    def __init__(self, home: Path) -> None:
        self.home, self._port = home, free_port()
        self.servers = f"127.0.0.1:{self._port}"
        self._classes = f"{jars()}/*"
        self._broker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._configure()
            self.start()
        except BaseException as error:
            self.__exit__()
            error.add_note(self._log())
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if "_gateway" in vars(self):
            self._gateway.shutdown()
            self._gateway.java_process.stdin.close()  # at which it ends
            self._gateway.java_process.wait(ANSWER)

    def environment(self) -> dict[str, str]:
        """Return the environment with which ``tests/jobs/stream.py`` finds Spark's connector, after Spark's own jars, and the broker."""
        found = (str(jar) for name in CONNECTOR for jar in jars().glob(f"{name}*.jar"))
        return {"SPARK_DIST_CLASSPATH": os.pathsep.join(found), "STREAM_KAFKA": self.servers}

    # -- the broker --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, or start it again after a kill. Return when it answers."""
        with open(self.home / "log", "ab") as log:
            self._broker = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *self._java("kafka.Kafka", "-Xmx256m"), str(self._properties)],
                cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(self._answers, START, self._log)

    def kill(self) -> None:
        """Kill it as ``kill -9`` does."""
        if self._broker:
            self._broker.kill()
            self._broker.wait(START)

    @property
    def _properties(self) -> Path:
        return self.home / "server.properties"

    def _configure(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        text = CONFIGURATION.format(home=self.home, port=self._port, controller=free_port())
        self._properties.write_text(text)
        format_it = ("format", "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qk", "--config", str(self._properties))
        with open(self.home / "log", "ab") as log:
            subprocess.run(
                [*self._java("kafka.tools.StorageTool"), *format_it],
                cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=START, check=True,
            )  # fmt: skip

    def _java(self, main: str, *options: str) -> list[str]:
        return ["java", *QUICK_JVM.split(), *options, "-cp", self._classes, main]

    def _answers(self) -> bool:
        assert self._broker
        if self._broker.poll() is not None:
            raise RuntimeError(f"Kafka's broker ended with {self._broker.returncode}")
        with socket.socket() as connection:
            connection.settimeout(5)
            return not connection.connect_ex(("127.0.0.1", self._port))

    def _log(self) -> str:
        return (self.home / "log").read_text(errors="replace")[-TAIL:]

    # -- its clients -------------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1) -> None:
        """Return when each partition answers: of rows that come before that, the producer's first ones can get lost."""
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, 1)
        self._admin.createTopics(self._jvm.java.util.List.of(new)).all().get()
        for number in range(partitions):
            self._consumer.endOffsets(self._jvm.java.util.List.of(self._partition(topic, number)))

    def delete(self, topic: str) -> None:
        self._admin.deleteTopics(self._jvm.java.util.List.of(topic)).all().get()
        wait_until(lambda: topic not in self._admin.listTopics().names().get(), ANSWER, self._log)

    def send(self, topic: str, values: Iterable[str], partition: int = 0) -> None:
        """Return when the broker has all of them. Raises the error of a row that it does not take."""
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord
        sent = [self._producer.send(record(topic, partition, None, value)) for value in values]
        for future in sent:
            future.get()

    def forget(self, topic: str, before: int, partition: int = 0) -> None:
        """Let a partition begin with the offset ``before``, as it does when the time of its older rows is over."""
        # Py4J does not find a static method beside one of an object that has the same name
        java, types = self._jvm.java.lang, self._gateway.new_array(self._jvm.java.lang.Class, 1)
        types[0], arguments = java.Long.TYPE, self._gateway.new_array(java.Object, 1)
        arguments[0] = java.Long.valueOf(before)
        method = java.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete").getMethod("beforeOffset", types)
        up_to = method.invoke(None, arguments)
        self._admin.deleteRecords(self._jvm.java.util.Map.of(self._partition(topic, partition), up_to)).all().get()

    def values(self, topic: str, partition: int = 0) -> list[str]:
        """Return all that a partition holds, in its order."""
        place = self._partition(topic, partition)
        places = self._jvm.java.util.List.of(place)
        self._consumer.assign(places)
        self._consumer.seekToBeginning(places)
        end, found = self._consumer.endOffsets(places)[place], list[str]()
        while self._consumer.position(place) < end:
            rows = self._consumer.poll(self._jvm.java.time.Duration.ofSeconds(ANSWER)).iterator()
            while rows.hasNext():
                found.append(str(rows.next().value()))
        return found

    def _partition(self, topic: str, number: int) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(topic, number)

    @cached_property
    def _gateway(self) -> Any:
        return JavaGateway.launch_gateway(
            jarpath=str(PY4J), classpath=self._classes, die_on_exit=True, javaopts=["-Xmx128m", *QUICK_JVM.split()]
        )

    @cached_property
    def _jvm(self) -> Any:
        return self._gateway.jvm

    @cached_property
    def _admin(self) -> Any:
        return self._jvm.org.apache.kafka.clients.admin.AdminClient.create(self._settings())

    @cached_property
    def _producer(self) -> Any:
        return self._jvm.org.apache.kafka.clients.producer.KafkaProducer(self._settings())

    @cached_property
    def _consumer(self) -> Any:
        return self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(self._settings())

    def _settings(self) -> Any:
        settings = self._jvm.java.util.Properties()
        of_text = "org.apache.kafka.common.serialization.String"
        settings["bootstrap.servers"] = self.servers
        settings["max.in.flight.requests.per.connection"] = "1"  # a row that is sent again stays in its place
        for kind in ("key", "value"):
            settings[f"{kind}.serializer"] = f"{of_text}Serializer"
            settings[f"{kind}.deserializer"] = f"{of_text}Deserializer"
        return settings


def jars() -> Path:
    """Return the folder with the jars. Raises ``NoJars``."""
    return fetched("kafka")
