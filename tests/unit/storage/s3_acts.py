"""Each call of a store in S3, and how it is refused. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_checkpoint_provider.errors import StoreError
from airflow_checkpoint_provider.storage import S3Store

ACTS: dict[str, Callable[[S3Store], object]] = {
    "write": lambda store: store.create("journal/1", b"x"),
    "read": lambda store: store.read("journal/1"),
    "list": lambda store: list(store.list("journal")),
    "folders": lambda store: list(store.folders("")),
    "overwrite": lambda store: store.overwrite("heartbeat", b"x"),
    "delete": lambda store: store.delete(["journal/1"]),
    "delete many": lambda store: store.delete(["journal/1", "journal/2"]),
    "delete under": lambda store: store.delete_under("journal"),
}
EACH = pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
SECRET = "writer-secret"


def refusal(act: Callable[[S3Store], object], store: S3Store, error: type[StoreError]) -> str:
    """Call ``act`` and return the message of its error; assert that it shows no secret."""
    with pytest.raises(error) as refused:
        act(store)
    message = str(refused.value)
    assert SECRET not in message
    assert "cannot " in message
    assert f"s3://{store.bucket}" in message
    return message
