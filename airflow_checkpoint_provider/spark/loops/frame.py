"""A frame in the hands of the script: ``df`` and ``set``. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.spark.stages.arguments import given_frame
from airflow_checkpoint_provider.spark.stages.schemas import refuse_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Frame:
    """One DataFrame as state, replaced as a whole. See ``CheckpointedJob.frame``.

    :param read: returns its present rows.
    :param change: replaces them.
    """

    def __init__(self, read: Callable[[], DataFrame], change: Callable[[DataFrame], None]) -> None:
        self._read, self._change = read, change

    @property
    def df(self) -> DataFrame:
        """Return the present rows. They can be read until the frame was stored twice more; get ``df`` anew in each turn."""
        return self._read()

    def set(self, df: DataFrame) -> None:
        """Replace all rows, also with other columns. Spark computes nothing here: the next barrier of the loop stores the rows.

        Raises ``WrongUse`` outside of a turn of ``iterate`` or ``once``, and ``UnsupportedType`` for columns that cannot be stored.
        """
        self._change(df)


@dataclass
class OpenedFrame:
    """A frame that the script uses. ``at`` is the identity of the stored rows that it has now; None: it has others.

    ``saved`` is the identity of those others, if they were stored outside of a turn: the script goes on with its own plan then.
    """

    uid: str
    initial: DataFrame | Callable[[], DataFrame]
    at: str | None
    df: DataFrame | None = None
    changed: bool = False  # since it was stored
    saved: str | None = None

    what: ClassVar[str] = "frame"
    change: ClassVar[str] = "set"  # the method by which the script changes it

    @property
    def name(self) -> str:
        """Return the state as messages call it."""
        return f"{self.what} '{self.uid}'"

    @property
    def advice(self) -> str:
        """Return what to give instead of something that is no DataFrame."""
        return (
            f'Give a DataFrame. The first one may be a function without arguments that returns one: job.frame("{self.uid}", lambda:'
            " spark.read...)"
        )

    def first(self) -> Any:
        """Return what the script has given for the first rows."""
        return self.initial() if callable(self.initial) else self.initial

    @property
    def has_columns(self) -> bool:
        """Return whether there are rows, or a table without rows, that can be stored."""
        return True

    def go_to(self, identity: str) -> None:
        """Have the stored rows with this identity from now on."""
        self.at, self.df, self.saved, self.changed = identity, None, None, False

    def note_saved(self, identity: str) -> None:
        """Note that the present rows are stored under this identity. The script goes on with its own plan."""
        self.saved, self.changed = identity, False


def checked_frame(opened: OpenedFrame, source: Any, spark: SparkSession) -> DataFrame:
    """Return the DataFrame that a frame gets. Raises ``WrongUse`` for other values, streams and other sessions, and ``UnsupportedType``.

    ``opened`` is the frame, for the errors.
    """
    df = given_frame(opened.name, source, spark, opened.advice)
    refuse_types(df, opened.uid, opened.what)
    return df


def outside_of_a_turn(opened: OpenedFrame) -> WrongUse:
    """Return the error for a frame that the script changes outside of a loop."""
    uid = opened.uid
    return WrongUse(
        f"{opened.name} is changed outside of a turn. A retry runs this line again, on rows that have the change already. Put it into a"
        f' loop, whose finished turns no retry runs again. Write two lines: `for item in job.once("{uid}-items", [item]):` and below it'
        f" `{uid}.{opened.change}(...)`. For many turns in one run, write job.iterate"
    )
