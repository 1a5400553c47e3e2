"""Objects that a script registers: with some or all methods, and with calls that are written down. Runs anywhere."""

from __future__ import annotations

from typing import Any

from airflow_checkpoint_provider.spark import InitializationContext, SnapshotContext

Calls = list[tuple[Any, ...]]


class Own:
    """An object with the required methods only. ``says`` is what its snapshot returns."""

    def __init__(self, calls: Calls | None = None, says: Any = None) -> None:
        self.calls = [] if calls is None else calls
        self.says = says
        self.given: InitializationContext | None = None

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.given = ctx

    def snapshot_state(self, ctx: SnapshotContext) -> Any:
        self.calls.append(("snapshot", ctx.uid, ctx.barrier, ctx.checkpoint_id))
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class Hook(Own):
    """An object with all methods."""

    def __init__(self, calls: Calls | None = None, says: Any = None, name: str = "") -> None:
        super().__init__(calls, says)
        self.name, self.notify_in_background = name, False

    def prepare_snapshot_pre_barrier(self, number: int | None) -> None:
        self.calls.append(("prepare", self.name, number))

    def notify_checkpoint_complete(self, number: int) -> None:
        self.calls.append(("complete", self.name, number))

    def notify_checkpoint_aborted(self, number: int, latest_completed: int | None) -> None:
        self.calls.append(("aborted", self.name, number, latest_completed))

    def close(self) -> None:
        self.calls.append(("close", self.name))


class Refusing:
    """A registered object without an answer."""

    def initialize_state(self, ctx: object) -> None:
        """Nothing to read."""

    def snapshot_state(self, ctx: object) -> object:
        raise ValueError("not now")
