"""Takes the words of ``spark-submit`` and runs the application without Spark, for tests of a service alone. Runs on Linux.

Host(folder, spark_submit=TINY)
"""

from __future__ import annotations

import runpy
import sys

TINY = ("python3", __file__)


def main(words: list[str]) -> None:
    behind_the_options = words.index("client") + 1  # HERE of submission.py ends with it
    if "--py-files" in words[:behind_the_options]:
        sys.path[1:1] = words[words.index("--py-files") + 1].split(",")
    sys.argv = words[behind_the_options:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
