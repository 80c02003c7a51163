"""Java, and the jars of Kafka and ZooKeeper: from `KAFKA_HOME` where that is set, else resolved once by Maven into the cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from airflow_provider_kmigrate.audit.connector import cache, resolved
from airflow_provider_kmigrate.clients import commands
from airflow_provider_kmigrate.exceptions import Refused

__all__ = ["cache", "jars", "java"]

POM = Path(__file__).with_name("pom.xml")
_WITHOUT_MAVEN = (
    "there is no Maven: install it (Debian, Ubuntu: apt-get install maven), or set KAFKA_HOME to a Kafka 3.9 distribution"
)


def java() -> str:
    """The program that runs the nodes; raises `Refused`, naming what to install, where there is none."""
    found = commands.java()
    if found is None:
        raise Refused(
            "there is no Java: install a JRE 17 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
        )
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def jars() -> tuple[Path, ...]:
    """Every jar of the class path, in a fixed order (a class archive is valid for one order only)."""
    home = os.environ.get("KAFKA_HOME")
    folder = Path(home).absolute() / "libs" if home else resolved(POM, "kafka", Refused(_WITHOUT_MAVEN), _say)
    found = tuple(sorted(path for path in folder.glob("*.jar") if not path.name.endswith(("-sources.jar", "-javadoc.jar"))))
    if not any(path.name.startswith("kafka_") for path in found):
        raise Refused(
            f"{folder} has no kafka_*.jar: KAFKA_HOME must name an unpacked Kafka 3.9 distribution; unset it to use Maven"
        )
    return found
