"""Java, and the jars of Kafka and ZooKeeper: from `KAFKA_HOME` where that is set, else resolved once by Maven into the cache.

A cluster may name other releases than the kit's own: their jars come by Maven alone.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from airflow_provider_kmigrate.audit.connector import cache_folder, resolve_pom
from airflow_provider_kmigrate.clients import commands
from airflow_provider_kmigrate.exceptions import Refused

__all__ = ["cache_folder", "jars", "java", "release_line", "zookeeper_jars"]

POM = Path(__file__).with_name("pom.xml")
_ZOOKEEPER_POM = POM.with_name("zookeeper.xml")
_OWN_RELEASE = re.compile(r"<kafka\.version>[^<]+<")
_WITHOUT_MAVEN = "there is no Maven: install it (Debian, Ubuntu: apt-get install maven), or set KAFKA_HOME to a Kafka distribution of 3.6 to 3.9"


def java() -> str:
    """The program that runs the nodes; raises `Refused`, naming what to install, where there is none."""
    found = commands.find_java()
    if found is None:
        raise Refused(
            "there is no Java: install a JRE 17 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
        )
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def jars(release: str = "") -> tuple[Path, ...]:
    """Every jar of the class path, in a fixed order (a class archive is valid for one order only). `release`: of Kafka; empty: the kit's own."""
    home = os.environ.get("KAFKA_HOME")
    if release:
        folder = _resolve(_OWN_RELEASE.sub(f"<kafka.version>{release}<", POM.read_text()), f"kafka-{release}")
    else:
        folder = Path(home).absolute() / "libs" if home else resolve_pom(POM, "kafka", Refused(_WITHOUT_MAVEN), _say)
    found = _list_jars(folder)
    if not any(path.name.startswith("kafka_") for path in found):
        raise Refused(f"{folder} has no kafka_*.jar: KAFKA_HOME must name an unpacked Kafka of 3.6 to 3.9; unset it to use Maven")
    return found


def zookeeper_jars(release: str) -> tuple[Path, ...]:
    """The class path of a ZooKeeper server of this release, in a fixed order."""
    return _list_jars(_resolve(_ZOOKEEPER_POM.read_text().replace("@RELEASE@", release), f"zookeeper-{release}"))


def _resolve(pom: str, name: str) -> Path:
    """The folder of the jars that a pom of this text names, resolved once."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "pom.xml"
        path.write_text(pom)
        return resolve_pom(path, name, Refused(_WITHOUT_MAVEN), _say)


def _list_jars(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.glob("*.jar") if not path.name.endswith(("-sources.jar", "-javadoc.jar"))))


def release_line(release: str = "") -> str:
    """The first two numbers of the release whose jars these are, such as 3.9. `release`: as of `jars`."""
    (server,) = (path.stem for path in jars(release) if re.fullmatch(r"kafka_[\d.]+-[\d.]+", path.stem))
    return ".".join(server.rpartition("-")[2].split(".")[:2])
