"""The commands that the pages show: each can be typed, and nothing that the command line can do is left out."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace

import pytest
from airflow.cli import cli_parser

from airflow_checkpoint_provider.cli.airflow_cli import CONNECTION
from airflow_checkpoint_provider.cli.verbs import VERBS, name
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import SAVEPOINT
from airflow_checkpoint_provider.protocol.query_records import QueryLocation, QueryRecord
from airflow_checkpoint_provider.ui.views.commands import Commands, ShownCommand, of_storage
from tests.support.recorded import Recorded, three_stages

HOW = {
    "-h",
    "--help",
    "-o",
    "--output",
    "-y",
    "--yes",
    "--limit",
    "--timeout",
    "--wait",
    "--no-wait",
    "--request-id",
    "--conn-id",
    "--item",  # names a history, as a run does: below
}
"""Options that say how a command runs or prints, not what it does."""
POINTER = "s3://lake/savepoints/savepoint-a-7-b"


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return cli_parser.get_parser()


def shown(connection: str = "checkpoint_default") -> list[ShownCommand]:
    """Return the commands of the pages of a job that runs, with a query and a savepoint."""
    recorded = Recorded(scope="")  # a query needs one history for all runs
    three_stages(recorded)
    query = QueryRecord(
        uid="totals",
        locations=(QueryLocation(path="query/totals/1-abc", branch=0, sink="file:/data/out", format="parquet"),),
    )
    commands = Commands(connection, replace(recorded.state, queries=(query,)))
    checkpoint = recorded.state.retained[-1]
    assert checkpoint.completion
    savepoint = replace(
        checkpoint,
        request=Request(token="t", kind=SAVEPOINT.name),
        completion=replace(checkpoint.completion, states=(replace(checkpoint.states[0], kind="query", batch=7),)),
    )
    return [
        *of_storage(connection),
        *commands.of_job(),
        *commands.of_attempt(1),
        *commands.of_checkpoint(savepoint, POINTER),
    ]


def words(command: ShownCommand) -> list[str]:
    return shlex.split(command.text)


@pytest.mark.parametrize("connection", ["checkpoint_default", "in_s3"])
def test_each_command_is_one_of_airflows(parser: argparse.ArgumentParser, connection: str) -> None:
    for command in shown(connection):
        program, *arguments = words(command)
        assert program == "airflow"
        parsed = parser.parse_args(arguments)  # ends the process if it is none
        assert (parsed.conn_id or CONNECTION) == connection, command


@pytest.mark.parametrize("run", ["--yes", "-y", "--rewind-sink"])
def test_run_that_is_called_like_an_option_is_a_run(parser: argparse.ArgumentParser, run: str) -> None:
    recorded = Recorded(scope=run)
    three_stages(recorded)
    commands = Commands("in_s3", recorded.state)
    checkpoint = recorded.state.retained[-1]
    assert checkpoint.completion
    for command in (*commands.of_job(), *commands.of_attempt(1), *commands.of_checkpoint(checkpoint, POINTER)):
        parsed = parser.parse_args(words(command)[1:])
        assert parsed.run == run or run not in words(command), command
        assert not getattr(parsed, "yes", False)
        assert not getattr(parsed, "rewind_sink", False) or "moves files" in command.purpose


@pytest.mark.parametrize("scope", ["scheduled__1", ""])
@pytest.mark.parametrize("item", ["orders", "--yes", "a 'b'"])
def test_each_command_of_an_item_names_it(parser: argparse.ArgumentParser, item: str, scope: str) -> None:
    recorded = Recorded(scope=scope, item=item)
    three_stages(recorded)
    commands = Commands("in_s3", recorded.state)
    checkpoint = recorded.state.retained[-1]
    for command in (*commands.of_job(), *commands.of_attempt(1), *commands.of_checkpoint(checkpoint, POINTER)):
        parsed = parser.parse_args(words(command)[1:])
        by_pointer = POINTER in words(command)
        assert by_pointer or parsed.item == item, command
        assert not getattr(parsed, "yes", False)


def test_each_verb_is_shown_with_all_that_it_can_do() -> None:
    """A new verb or option needs a command, or a reason in ``HOW``."""
    commands = [words(command)[2:] for command in shown()]
    for verb, arguments in VERBS.items():
        options = {flag for flags, _ in arguments for flag in flags if flag.startswith("-")}
        used = {word for own, *rest in commands if own == name(verb) for word in rest}
        assert any(own == name(verb) for own, *_ in commands), verb
        assert options - HOW - used == set(), verb


def test_restore_is_shown_from_each_kind_of_source() -> None:
    sources = {rest[rest.index("--from") + 1] for own, *rest in (words(c)[2:] for c in shown()) if own == "restore"}
    assert sources == {"latest", "run-start", "none", "POINTER", "chk-3"}


def test_what_stops_goes_back_or_deletes_is_shown_with_dry_run() -> None:
    asks = {name(verb) for verb, arguments in VERBS.items() if any("--dry-run" in flags for flags, _ in arguments)}
    dangerous = [command for command in shown() if words(command)[2] in asks and command.purpose[:5] != "List "]
    assert {words(command)[2] for command in dangerous} == {
        *("stop", "restore", "release", "rewound", "dispose", "prune")
    }
    assert all("--dry-run" in words(command) and command.changes for command in dangerous)


def test_driver_that_does_not_run_is_asked_for_nothing() -> None:
    recorded = Recorded()
    three_stages(recorded)
    recorded.ended("03:00:00")
    verbs = {words(command)[2] for command in Commands("checkpoint_default", recorded.state).of_job()}
    assert verbs.isdisjoint({"trigger", "savepoint", "stop"})


def test_history_of_one_run_shows_no_command_that_reads_the_shared_one() -> None:
    """``preflight`` and ``release`` take no run: they would read another history, or find none."""
    recorded = Recorded()
    three_stages(recorded)
    verbs = {words(command)[2] for command in Commands("checkpoint_default", recorded.state).of_job()}
    assert "restore" in verbs
    assert verbs.isdisjoint({"preflight", "release"})


def test_table_and_story_of_an_older_run_are_those_of_the_page() -> None:
    recorded = Recorded(scope="")
    recorded.started("22:00:20", run="one")
    for run, named in (("one", ["one"]), ("", []), ("not listed any more", [])):
        show, _, story, *_ = Commands("checkpoint_default", recorded.state, run).of_job()
        assert words(show)[2:] == ["show", recorded.job, *named]
        assert words(story)[2:] == ["story", recorded.job, *named]
