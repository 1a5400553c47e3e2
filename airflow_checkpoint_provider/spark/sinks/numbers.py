"""Numbers for writes that the script makes itself, as Delta takes them: ``job.txn``. Runs in the Spark driver.

They are kept as a sink that holds nothing ready: a number is used as soon as it is given out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.spark.sinks.base import OpenSink, Prepared, Sink, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def application(incarnation: str, uid: str, run: str) -> str:
    """Return the ``txnAppId`` of a run. Runs do not share one: the first number of a run is not that of the run before."""
    return f"airflow-checkpoint/{incarnation}/{uid}/{run}"


@dataclass(frozen=True)
class Numbers(Sink):
    """The numbers of ``job.txn(uid)``."""

    uid: str
    kind: ClassVar[str] = "txn"

    @property
    def target(self) -> str:
        return self.uid

    def open(self, context: SinkContext) -> OpenSink:
        return OpenNumbers()


class OpenNumbers(OpenSink):
    """Nothing is prepared, so nothing is committed or aborted."""

    def prepare(self, df: DataFrame, name: str, version: int) -> Prepared:
        raise WrongUse("the script itself writes with job.txn")

    def commit(self, transaction: Transaction) -> bool:
        return True

    def abort(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(names)

    def position(self) -> str:
        return ""
