"""The request of the command line to a preflight driver, and its answer. Pure. Runs anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from airflow_checkpoint_provider.errors import InvalidConfig

PREFLIGHT_VARIABLE = "CHECKPOINT_PREFLIGHT"
UNSET = f"Unset it, and start the script again: `unset {PREFLIGHT_VARIABLE}`"


@dataclass(frozen=True)
class PreflightRequest:
    """The request to a preflight driver: compare with checkpoint ``source`` of ``history`` below ``root``, and write the result to the
    file ``answer``. The driver resolves ``source`` itself, because the running job may delete older checkpoints while Spark starts.
    """

    root: str
    history: str
    source: str  # latest, an id, or the URI of a checkpoint or savepoint
    answer: str

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable of the driver."""
        return {PREFLIGHT_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> PreflightRequest | None:
        """Return the request in the environment of a driver; None if it has none. Raises ``InvalidConfig`` for any other text."""
        text = environment.get(PREFLIGHT_VARIABLE)
        if not text:
            return None
        try:
            request = cls(**json.loads(text))
            known = all(isinstance(value, str) and value for value in asdict(request).values())
        except (ValueError, TypeError, RecursionError):
            known = False
        if not known:
            raise InvalidConfig(
                f"{PREFLIGHT_VARIABLE} is in the environment of this script, and holds nothing that `checkpoints preflight` writes. {UNSET}"
            )
        return request


@dataclass(frozen=True)
class QueryFit:
    """A query, and its differences from the checkpoint; none if it could continue. ``note`` is for people. ``unknown`` says why something
    could not be compared.
    """

    query: str
    differences: tuple[str, ...] = ()
    note: str = ""
    unknown: str = ""

    @property
    def summary(self) -> str:
        """Return all findings about the query; empty if it fits."""
        return "; ".join(filter(None, (*self.differences, self.unknown, self.note)))


@dataclass(frozen=True)
class PreflightResult:
    """The checkpoint with which the queries were compared, and the findings."""

    checkpoint: str
    queries: tuple[QueryFit, ...]

    def to_json(self) -> str:
        """Return the result as a driver writes it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> PreflightResult:
        """Return the result that a driver has written."""
        data = json.loads(text)
        fits = (QueryFit(**{**fit, "differences": tuple(fit["differences"])}) for fit in data["queries"])
        return cls(data["checkpoint"], tuple(fits))
