"""The parts of a stage, as a checkpoint and its entry in the journal hold them. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_checkpoint_provider.protocol.fields import Seconds, Size
from airflow_checkpoint_provider.protocol.records import Record, added


@dataclass(frozen=True, kw_only=True)
class PartsProgress(Record):
    """How many parts of a stage are stored. ``kept_s``: seconds of work of the parts that the attempt has not computed again."""

    done: Size
    total: Size
    kept_s: Seconds = added(0.0)

    @property
    def whole(self) -> bool:
        return self.done == self.total

    def __str__(self) -> str:
        return f"{self.done} of {self.total} parts"


@dataclass(frozen=True, kw_only=True)
class Part(Record):
    """What a stored part was made from, as ``StageDetail`` describes it. Empty if one frame makes all parts.

    ``captured`` is a digest of the values that its Python functions have captured. Their names lie beside its rows, with its plan.
    """

    plan: str = added("")
    inputs: str = added("")
    listed: str = added("")
    captured: str = added("")


@dataclass(frozen=True, kw_only=True)
class PartsDetail(Record):
    """The values of all parts, in their order, and the parts that are stored: each has a file set.

    ``by``: the column of the frame whose values they are. None: a function makes the frame of each.
    """

    values: tuple[Any, ...]  # JSON
    done: tuple[Part, ...]
    by: str | None = added()
    kept_s: Seconds = added(0.0)

    @property
    def progress(self) -> PartsProgress:
        """Return what the journal says of them."""
        return PartsProgress(done=len(self.done), total=len(self.values), kept_s=self.kept_s)
