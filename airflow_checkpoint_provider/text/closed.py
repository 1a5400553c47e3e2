"""What is said of histories that were swept or closed. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider.coordinator.sweeping import Swept
from airflow_checkpoint_provider.protocol.lifetime import FINISHED
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import coded, title
from airflow_checkpoint_provider.text.units import day_and_time, plural, some


def closed(state: State) -> str:
    """What there is to say of a history that is closed."""
    kept = "its table was kept 30 days" if state.closing == FINISHED else "nothing of it is kept any more"
    again = "A clear of its task starts it again, from nothing"
    return coded(
        f"{title(state, state.scope)}: closed at {day_and_time(state.at)} ({state.closing}); {kept}. {again}", "CKP234"
    )


def swept(job: str, done: Sequence[Swept]) -> list[str]:
    """One line for a task's log; none if there was nothing to do."""
    emptied = [one for one in done if one.deleted or one.leftovers]
    shut = [one.run for one in done if one.closed]
    failed = next((one for one in done if one.error), None)
    said = []
    if emptied:
        what = f"{plural(sum(len(one.deleted) for one in emptied), 'checkpoint')} and {plural(sum(one.leftovers for one in emptied), 'leftover')}"
        said.append(f"deleted {what} of {some([one.run for one in emptied], 3)}")
    if shut:
        said.append(f"closed {some(shut, 3)}")
    if failed:
        said.append(f"could not tidy up {failed.run or 'at all'}, the next run tries again ({failed.error})")
    return [coded(f"{job}, older runs: {'; '.join(said)}", "CKP114")] if said else []
