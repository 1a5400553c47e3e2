"""The releases of Spark on which this package runs, and whether the parts of an installation match. Runs in the Spark driver.

It is imported before all modules that use Spark: an older PySpark lacks modules that they import.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyspark

from airflow_checkpoint_provider.errors import VersionMismatch
from airflow_checkpoint_provider.policies import releases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RELEASE = re.compile(r"\d+\.\d+\.\d+")
OLDEST, NEWEST = (4, 0), (4, 3)
"""The releases of Spark with which the tests run."""
AS_INSTALLED = "{} as installed"
CLIENT = AS_INSTALLED.format("pyspark-client")
TRIED = f"{releases.text(OLDEST)} to {releases.text(NEWEST)}"


def check_versions(spark: SparkSession) -> None:
    """Raise ``VersionMismatch`` unless Spark is new enough, and installed packages, imported package and JVM are one release."""
    _refuse_old(spark.version)
    _refuse_mixed(_versions(spark))


def untried(version: str) -> str | None:
    """Return a line for the log if this package was not tried with so new a Spark, else None."""
    if releases.minor(version) <= NEWEST:
        return None
    return f"Spark {version} is newer than {releases.text(NEWEST)}, the newest release that this package was tried with; the job continues"


def minor_release(version: str) -> str:
    """Return major and minor version, such as 4.2."""
    return releases.text(releases.minor(version))


def _refuse_old(version: str) -> None:
    if releases.minor(version) < OLDEST:
        raise VersionMismatch(
            f"this package needs Spark {releases.text(OLDEST)} or newer, found {version}. Install a newer Spark where the driver runs"
        )


def _versions(spark: SparkSession) -> dict[str, str]:
    versions = {"the JVM": spark.version, "pyspark as imported": pyspark.__version__}
    for package in ("pyspark", "pyspark-client"):  # both own the same files: the later installation overwrites them
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[AS_INSTALLED.format(package)] = importlib.metadata.version(package)
    return versions


def _refuse_mixed(versions: Mapping[str, str]) -> None:
    found = {match[0] if (match := RELEASE.match(version)) else version for version in versions.values()}
    if len(found) > 1:
        listed = ", ".join(f"{label} {version}" for label, version in versions.items())
        raise VersionMismatch(f"this driver has several versions of Spark: {listed}. {_mend(versions)}")


def _mend(versions: Mapping[str, str]) -> str:
    """Return how to get one version. Each release has pyspark; not each has pyspark-client."""
    if CLIENT not in versions:
        return "Install the pyspark of the JVM's version where the driver runs"
    both = f'"pyspark=={versions[CLIENT]}" "pyspark-client=={versions[CLIENT]}"'
    return f"Both packages own the same files: pip install --force-reinstall --no-deps {both}"


_refuse_old(pyspark.__version__)
