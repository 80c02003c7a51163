"""The jars with which Spark reads Kafka; its wheel has none. `python -m airflow_provider_kmigrate.audit.connector` fetches them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from airflow_provider_kmigrate.clients.maven import resolved
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused

POM = Path(__file__).with_name("pom.xml")


def jars(say: Callable[[str], None] = lambda _: None) -> tuple[str, ...]:
    """Paths for `session.start(jars=...)` on this machine; fetched once. `say`, and the errors, as of `maven.resolved`."""
    text = "Spark's jars for Kafka are not here, and there is no Maven to fetch them."
    missing = Refused.because(Reason.of(AuditCause.JARS_MISSING, text))
    return tuple(sorted(str(path) for path in resolved(POM, "spark-kafka", missing, say).glob("*.jar")))


def main() -> int:
    """Print them, one a line; 2 with the reason if they are not available."""
    say = partial(print, file=sys.stderr)
    try:
        print("\n".join(jars(say)))  # noqa: T201  # a program's own words
    except KMigrateError as error:
        say(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
