"""The jars with which Spark reads Kafka; its wheel has none. `python -m airflow_provider_kmigrate.audit.connector` fetches them.

Maven resolves what a pom names, once, into a cache: `$KMIGRATE_CACHE`, or `~/.cache/kmigrate`. A folder of jars is named by its
pom's content and appears by one rename, so it is complete or absent. A lock keeps two first starts from resolving twice.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from airflow_provider_kmigrate.clients import commands
from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused

POM: Final = Path(__file__).with_name("pom.xml")
_TIMEOUT_S: Final = 900.0


def resolve_kafka_jars(say: Callable[[str], None] = lambda _: None) -> tuple[str, ...]:
    """Paths for `session.start(jars=...)` on this machine; fetched once. `say`, and the errors, as of `resolve_pom`."""
    text = "Spark's jars for Kafka are not here, and there is no Maven to fetch them."
    missing = Refused.because(Reason.of(AuditCause.JARS_MISSING, text))
    return tuple(sorted(str(path) for path in resolve_pom(POM, "spark-kafka", missing, say).glob("*.jar")))


def cache_folder() -> Path:
    """The folder of downloads."""
    return Path(os.environ.get("KMIGRATE_CACHE") or Path.home() / ".cache" / "kmigrate").absolute()


def resolve_pom(pom: Path, name: str, without_maven: Refused, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with the run-time jars of `pom`; if missing, Maven resolves them, within 15 minutes.

    `name` begins the folder's name and names what is resolved; `say` gets a sentence before minutes are spent. Raises
    `without_maven` if Maven is missing, `TimedOut`, or `Failed` with the end of its output.
    """
    folder = cache_folder() / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        with locked(cache_folder(), timeout=_TIMEOUT_S):
            if not folder.is_dir():
                _download_jars(pom, folder, without_maven, say)
    return folder


def _download_jars(pom: Path, folder: Path, without_maven: Refused, say: Callable[[str], None]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise without_maven
    say(f"resolving the jars of {folder.name.rpartition('-')[0]} with Maven, once ...")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        target = Path(scratch) / "libs"
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        commands.run([maven, "-q", "-B", "-f", str(pom), *goal], _TIMEOUT_S, "Maven", "check its mirrors and proxy settings")
        target.rename(folder)


def main() -> int:
    """Print them, one a line; 2 with the reason if they are not available."""
    say = partial(print, file=sys.stderr)
    try:
        print("\n".join(resolve_kafka_jars(say)))  # noqa: T201  # a program's own words
    except KMigrateError as error:
        say(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
