"""Log lines for restored state that the script did not use. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.text import state_messages
from tests.support.recorded import Recorded, three_stages
from tests.unit.text.conftest import Golden


def test_lines_of_unclaimed_states(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    old = StateSnapshot(uid="high water", kind="value", run="r", value=7)
    several = [old, recorded.states["clean"]]
    golden(
        "left_over",
        [
            state_messages.handed_on(several),
            state_messages.handed_on([old]),
            state_messages.left_behind(several),
            state_messages.left_behind([old]),
            state_messages.unfinished_left_behind([old]),
        ],
    )
