"""What the services make of the words behind ``spark-submit``."""

from __future__ import annotations

import pytest

from tests.support.services.submission import ON_YARN, Submission

HERE = ["--master", "local[2]", "--deploy-mode", "client"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["app.py"], [*HERE, "app.py"]),
        (["--verbose", "app.py", "--conf", "x"], ["--verbose", *HERE, "app.py", "--conf", "x"]),
        (["--name=a b", "-c", "x=1=2", "app.py"], ["--name", "a b", "--conf", "x=1=2", *HERE, "app.py"]),
        (["--master", "yarn", "app.py"], ["--master", "yarn", *HERE, "app.py"]),
        (["--conf", "x=1", "--conf", "x=2", "app.py"], ["--conf", "x=2", *HERE, "app.py"]),
    ],
)
def test_options_stay_and_the_master_is_here(given: list[str], wanted: list[str]) -> None:
    assert Submission.of_words(given).words() == wanted


@pytest.mark.parametrize("given", [[], ["--conf", "x=1"], ["--name"]])
def test_words_without_an_application_are_refused(given: list[str]) -> None:
    with pytest.raises(ValueError, match="no application"):
        Submission.of_words(given)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["app.py"], False),
        (["--deploy-mode", "cluster", "app.py"], True),
        (["--conf", "spark.submit.deployMode=cluster", "app.py"], True),
        (["--conf", "spark.submit.deployMode=cluster", "--deploy-mode", "client", "app.py"], False),
    ],
)
def test_option_wins_over_the_conf(given: list[str], wanted: bool) -> None:
    assert Submission.of_words(given).in_cluster_mode is wanted


def test_confs_are_variables_of_the_driver_below_those_of_the_request() -> None:
    confs = {f"{ON_YARN}A": "1", f"{ON_YARN}B": "2", "spark.c": "3"}
    asked = Submission(application="app.py", confs=confs, environment={"B": "mine"}).with_variables_of(ON_YARN)
    assert (asked.environment, asked.confs) == ({"A": "1", "B": "mine"}, confs)
