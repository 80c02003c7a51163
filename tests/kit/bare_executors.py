"""Python workers of Spark as a cluster's executors have them: of kmigrate only the archive that the driver ships, and nothing that it requires.

`python -m tests.kit.bare_executors` is Spark's daemon (`spark.python.daemon.module`), from which all workers are forked. Without it the workers of a local
session import from this checkout whatever is missing in the archive, and only a real cluster shows it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DAEMON: Final = {"spark.python.daemon.module": "tests.kit.bare_executors", "spark.executorEnv.PYTHONPATH": str(ROOT)}
"""For the settings of a session. Executors that are processes of their own work in other folders, and find this module by its path alone."""
PACKAGE: Final = "airflow_provider_kmigrate"
HERE: Final = {"py4j", "pyspark", "pyarrow", "numpy", "pandas", "tests"}
"""What a Spark of any site has beside the standard library, and the functions of tests."""


class BareFinder(MetaPathFinder):
    """Finds the package in archives only, and no other package but those of `HERE`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if top == PACKAGE:
            archives = [entry for entry in (sys.path if path is None else path) if ".zip" in entry]
            if (found := PathFinder.find_spec(name, archives, target)) is not None:
                return found
        elif top in sys.stdlib_module_names or top in HERE:
            return None  # the other finders look for it
        raise ModuleNotFoundError(f"No module named {name!r}: a Spark cluster's executors do not have it", name=name)


if __name__ == "__main__":
    from pyspark import daemon

    sys.meta_path.insert(0, BareFinder())
    daemon.manager()
