"""How the local cluster's JVMs are run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.kit.localcluster import jars

# Two cores and many JVMs: quick to start counts, peak speed does not.
_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xss512k",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java program, the class path, and where class archives are (`classes.prepare`), or are to be recorded."""

    java: str
    class_path: str
    recorded_in: Path | None = None

    def command(self, main: str, arguments: Iterable[str], *, kind: str, heap: str, folder: Path) -> tuple[str, ...]:
        """The argument list that runs a main class; its logging is configured by `folder`/log4j.properties."""
        logging = f"-Dlog4j.configuration=file:{folder}/log4j.properties"
        return (self.java, f"-Xmx{heap}", *_FLAGS, *self._archive(kind), logging, main, *arguments)

    @property
    def env(self) -> dict[str, str]:
        """The class path goes by the environment, so that `ps` stays readable."""
        return {"CLASSPATH": self.class_path}

    @property
    def archives(self) -> Path:
        """The folder of the class archives that fit this Java and class path, whether there or not."""
        program = Path(self.java).resolve()
        identity = f"{program}\0{program.stat().st_mtime_ns}\0{self.class_path}\0{_FLAGS}"
        return jars.cache_folder() / f"classes-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"

    def _archive(self, kind: str) -> tuple[str, ...]:
        if self.recorded_in:
            return (f"-XX:ArchiveClassesAtExit={self.recorded_in}/{kind}.jsa",)
        found = self.archives / f"{kind}.jsa"
        return (f"-XX:SharedArchiveFile={found}",) if found.exists() else ()


def find(release: str = "") -> Runtime:
    """What runs Kafka of this `release`; empty: the kit's own. Raises `Refused` where something must be installed first, `Failed` where the jars cannot be resolved."""
    return Runtime(jars.java(), ":".join(str(path) for path in jars.jars(release)))
