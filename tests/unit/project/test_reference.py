"""Pages that are made of the code say what the code says. Runs where Airflow is."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

import pytest

from airflow_checkpoint_provider import notifications, operators, retry_policies, sensors, task_groups
from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.handover import PREFIX, LaunchSettings
from airflow_checkpoint_provider.storage.s3_credentials import CONFS
from tests.support.blocks import names
from tests.support.reference import PARTS, parameters, written

DOCS = Path(__file__).parents[3] / "docs"
FOLDER = DOCS / "reference"
MADE = (*sorted(FOLDER.glob("*.md")), DOCS / "inside" / "modules.md")
NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
PAGES = [page for page in MADE if names(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_shows_what_is_in_the_code(page: Path) -> None:
    """``WRITE_GOLDEN_TEXTS=1`` rewrites what is made of the code."""
    made = written(page.read_text(encoding="utf-8"))
    if os.environ.get("WRITE_GOLDEN_TEXTS"):
        page.write_text(made, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == made


DOCUMENTED = (operators, sensors, task_groups, retry_policies, notifications)
TASKS = [getattr(module, name) for module in DOCUMENTED for name in module.__all__]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_each_parameter_of_a_task_is_described(task: type) -> None:
    """The page of operators shows the docstrings."""
    ours = [base for base in task.__mro__ if base.__module__.startswith("airflow_checkpoint_provider.")]
    own = [vars(base)["__init__"] for base in ours if "__init__" in vars(base)]
    taken = {name for init in own for name, found in inspect.signature(init).parameters.items() if found.kind in NAMED}
    assert taken - {"self"} - parameters(task).keys() == set()


def test_each_part_is_on_a_page() -> None:
    assert sorted(name for page in PAGES for name in names(page.read_text(encoding="utf-8"))) == sorted(PARTS)


def test_confs_of_a_launch_are_those_of_the_page() -> None:
    launch = LaunchSettings(
        root="s3://lake/checkpoints",
        history="jobs/orders",
        launch=1,
        s3=dict.fromkeys(CONFS.values(), ""),
        savepoint_roots=(),
        job="orders",
        token=Token(dag="etl", run="monday", task="orders"),
        try_number=1,
        checkpointing=CheckpointConfig(),
        allow_non_restored_state=True,
        restored_from="s3://lake/other/chk-7",
    )
    rows = re.findall(r"^\| (.*?) \|", (FOLDER / "settings.md").read_text().split("## Spark confs")[1], re.MULTILINE)
    told = [name for row in rows for name in re.findall("`(.*?)`", row)]
    assert sorted(told) == sorted(name.removeprefix(PREFIX) for name in launch.to_confs())
