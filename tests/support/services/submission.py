"""What a service is asked to submit, as words for ``spark-submit``. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import urlsplit

HERE = ("--master", "local[2]", "--deploy-mode", "client")
"""Where each driver runs, whatever the request says: an option wins over a conf, and the last of two equal options over the first."""
ON_YARN = "spark.yarn.appMasterEnv."
"""Begins the names of confs that are variables of a driver in YARN's cluster mode."""
FLAGS = {"--verbose", "-v", "--supervise", "--help", "-h", "--version", "--usage-error"}
"""The options of ``spark-submit`` that take no value."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """An application with everything that a request names. Nothing is added, and nothing is left out.

    ``confs`` are as received. ``options`` stand before the application, such as ``--py-files``. ``environment`` has the variables
    that the request gives to the driver.
    """

    application: str
    arguments: Sequence[str] = ()
    confs: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_words(cls, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Self:
        """Return what the words behind ``spark-submit`` say. Raise ``ValueError`` if they name no application."""
        rest, options, confs = list(words), list[str](), dict[str, str]()
        while rest and rest[0].startswith("-"):
            option, equals, value = rest.pop(0).partition("=")
            if option in FLAGS:
                options.append(option)
                continue
            value = value if equals else rest.pop(0) if rest else ""
            if option in ("--conf", "-c"):
                name, _, confs[name] = value.partition("=")
            else:
                options += [option, value]
        if not rest:
            raise ValueError(f"no application in {' '.join(words)}")
        return cls(application=rest[0], arguments=rest[1:], confs=confs, options=options, environment=environment or {})

    def words(self) -> list[str]:
        """Return what stands behind ``spark-submit``."""
        confs = [word for name, value in self.confs.items() for word in ("--conf", f"{name}={value}")]
        return [*self.options, *confs, *HERE, self.application, *self.arguments]

    def with_variables_of(self, prefix: str) -> Self:
        """Return the same with the variables that confs name: a cluster manager puts them into the driver's environment."""
        named = {name.removeprefix(prefix): value for name, value in self.confs.items() if name.startswith(prefix)}
        return replace(self, environment={**named, **self.environment})

    @property
    def in_cluster_mode(self) -> bool:
        """Return whether the request wants the driver in the cluster, as an option or a conf says."""
        options = dict(zip(self.options, self.options[1:], strict=False))
        return (options.get("--deploy-mode") or self.confs.get("spark.submit.deployMode")) == "cluster"

    def below(self, wrapper: str, *arguments: str) -> Self:
        """Return the same, run by a script that is given the application, as a path, and its arguments behind its own."""
        path = urlsplit(self.application).path if self.application.startswith(("local:", "file:")) else self.application
        return replace(self, application=wrapper, arguments=[*arguments, path, *self.arguments])


def listed(option: str, values: Iterable[str] | None) -> list[str]:
    """Return an option that takes a list, or nothing if the list is empty."""
    joined = ",".join(values or ())
    return [option, joined] if joined else []


def given(option: str, value: object) -> list[str]:
    """Return an option with its value, or nothing if the request has none."""
    return [] if value is None else [option, str(value)]
