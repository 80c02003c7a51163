"""Kafka's old consumer for tests: its jars by Maven, its real processes, and its assignor asked without a process for each member."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from airflow_provider_kmigrate.audit.connector import cache_folder, resolve_pom
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.exceptions import Failed, Refused
from tests.kit.localcluster.jars import java

LATEST = "1.1.1"  # the last release that has it
BEFORE_1_0 = "0.10.2.2"  # the other key format of round-robin
BEFORE_LISTENERS = "0.8.2.2"  # no rebalance listener: its program is another one

_HERE = Path(__file__).parent
_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-Djava.net.preferIPv4Stack=true")


def class_path(version: str = LATEST) -> str:
    """The jars of a release, resolved once."""
    without = Refused("there is no Maven: install it (Debian, Ubuntu: apt-get install maven)")
    return f"{resolve_pom(_HERE / f'pom-{version}.xml', f'old-consumer-{version}', without)}/*"


def _programs(version: str) -> Path:
    """The folder of our Java programs, compiled against a release, once for each state of their sources."""
    return compiled(
        sorted((_HERE / "v0_8" if version == BEFORE_LISTENERS else _HERE).glob("*.java")),
        Path(class_path(version)).parent.glob("*.jar"),
        f"old-consumer-programs-{version}",
    )


def compiled(sources: Sequence[Path], known: Iterable[Path], name: str) -> Path:
    """The folder of these Java sources' classes, compiled against the jars `known`, once for each state of the sources; its name begins with `name`."""
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = cache_folder() / f"{name}-{state}"
    if not folder.is_dir():
        compiler = [java(), *_FLAGS, "-cp", class_path(), "org.eclipse.jdt.internal.compiler.batch.Main", "-8", "-nowarn"]
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            target = Path(scratch) / "classes"
            beside = ":".join(str(path) for path in sorted(known))
            subprocess.run([*compiler, "-cp", beside, "-d", str(target), *map(str, sources)], check=True)
            try:
                target.rename(folder)
            except OSError:  # another process was quicker
                if not folder.is_dir():
                    raise
    return folder


def java_program(main: str, *arguments: str, version: str = LATEST, heap: str = "192m") -> list[str]:
    """The command that runs a class of the jars, or of our own programs."""
    return [java(), f"-Xmx{heap}", *_FLAGS, "-cp", f"{_programs(version)}:{class_path(version)}", main, *arguments]


Question = tuple[str, str, str]  # group, consumer id, strategy
Answer = Mapping[TopicPartition, str] | None  # None: it could not compute any


def asked(zookeeper: str, questions: Iterable[Question], version: str = LATEST) -> list[Answer]:
    """What the old consumer's own assignor gives each of these members, from what ZooKeeper holds."""
    argv = java_program("OldAssignments", zookeeper, version=version)
    lines = "".join(" ".join(question) + "\n" for question in questions)
    done = subprocess.run(argv, input=lines, check=True, capture_output=True, encoding="utf-8", timeout=300)
    return [_answer(rows) for rows in _blocks(done.stdout.splitlines())]


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in lines:
        if line == ".":
            yield block
            block = []
        else:
            block.append(line)


def _answer(rows: list[str]) -> Answer:
    if any(row.startswith("! ") for row in rows):
        return None
    words = (row.split(" ") for row in rows)
    return {TopicPartition(topic, int(partition)): thread for topic, partition, thread in words}


class Member(NamedTuple):
    """One real old consumer; its consumer id is `<group>_<name>`."""

    group: str
    name: str
    strategy: str
    pattern: str
    subscription: Mapping[str, int]

    def line(self) -> str:
        return " ".join((*self[:4], *(f"{topic}:{streams}" for topic, streams in self.subscription.items())))


@contextmanager
def members(zookeeper: str, wanted: Iterable[Member], log: Path) -> Iterator[None]:
    """These old consumers, all joined, in one process; they leave with the block. What they say beside that is in `log`."""
    lines = "".join(f"{member.line()}\n" for member in wanted) + "\n"
    with log.open("w") as errors:
        argv = java_program("OldMembers", zookeeper, heap="512m")
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8")
    with process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(lines)
            process.stdin.flush()
            if not any(line == "ready\n" for line in process.stdout):
                raise Failed(f"old consumers could not join: {log.read_text()[-2000:]}")
            yield
        finally:
            process.kill()


@contextmanager
def console_consumer(zookeeper: str, group: str, topics: str, log: Path, *properties: str) -> Iterator[subprocess.Popen[bytes]]:
    """Kafka's own ConsoleConsumer: one stream, and always a wildcard, which may be a list with commas. `properties`: `name=value` each."""
    settings = [argument for each in properties for argument in ("--consumer-property", each)]
    argv = java_program(
        "kafka.tools.ConsoleConsumer", "--zookeeper", zookeeper, "--group", group, "--whitelist", topics, *settings
    )
    with log.open("wb") as output, subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.kill()
