"""What is said of restored state that nobody asked for."""

from __future__ import annotations

from airflow_checkpoint_provider import text
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from tests.support.recorded import Recorded, three_stages
from tests.unit.text.conftest import Golden


def test_what_nobody_asked_for(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    old = StateSnapshot(uid="high water", kind="value", run="r", value=7)
    several = [old, recorded.states["clean"]]
    golden(
        "left_over",
        [text.handed_on(several), text.handed_on([old]), text.left_behind(several), text.left_behind([old])],
    )
