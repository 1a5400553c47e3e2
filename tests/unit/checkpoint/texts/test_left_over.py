"""What is said of restored state that nobody asked for."""

from __future__ import annotations

from airflow_checkpoint_provider.checkpoint import texts
from airflow_checkpoint_provider.checkpoint.metadata import StateSnapshot
from tests.support.recorded import Recorded, three_stages
from tests.unit.checkpoint.texts.conftest import Golden


def test_what_nobody_asked_for(golden: Golden) -> None:
    recorded = Recorded()
    three_stages(recorded)
    old = StateSnapshot(uid="high water", kind="value", run="r", value=7)
    several = [old, recorded.states["clean"]]
    golden(
        "left_over",
        [texts.handed_on(several), texts.handed_on([old]), texts.left_behind(several), texts.left_behind([old])],
    )
