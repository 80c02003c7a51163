"""A JVM application with an old and a new version, its instances under load, and the account of every record that it processed.

The account rests on the application's own log alone: each line is a record that it processed, or a commit of all records before it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import Producer

from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, GroupWay, InstanceSpec
from tests.old_consumer import jvm_instance
from tests.old_consumer.old_consumers import BEFORE_LISTENERS, LATEST, java_program

Record = tuple[str, int, int]  # topic, partition, offset


class Account(NamedTuple):
    """`lost`: acknowledged and never processed, `skipped`: those of them with a later record processed; `repeated`: processed again.

    `uncommitted`: records that lives had processed and not committed when they ended.
    """

    acked: int
    processed: int
    lost: int
    skipped: int
    repeated: int
    uncommitted: int


@dataclass
class JvmApplication:
    """`instances` processes of one group; each begins as the old version of `version`."""

    folder: Path
    bootstrap: str
    zookeeper: str
    group: str = "invoices"
    topic: str = "invoices"
    instances: int = 2
    version: str = LATEST
    new_topics: str = ""  # what the new version reads; empty: the same
    side_by_side: bool = False  # its cutover begins with a canary

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.group}-app{number}" for number in range(self.instances))

    def prepare(self) -> None:
        """Write down how each version is started."""
        self.folder.mkdir(parents=True, exist_ok=True)
        old = java_program("OldInstance", self.zookeeper, self.group, "{instance}", self.topic, version=self.version, heap="96m")
        new = java_program(
            "NewInstance",
            self.bootstrap,
            self.group,
            "{instance}",
            self.new_topics or self.topic,
            version=LATEST if self.version == BEFORE_LISTENERS else self.version,  # 0.8 has no KafkaConsumer
            heap="96m",
        )
        old.insert(1, "-Dtell.commits=true")
        (self.folder / "application.json").write_text(json.dumps({"zookeeper": old, "kafka": new}))

    def entry(self, **keys: Any) -> dict[str, Any]:
        """Its group in a cluster file."""
        command = [sys.executable, jvm_instance.__file__, str(self.folder.resolve()), "{instance}", "{kind}"]
        timing = {"bake": "16s", "commit_within": "15s", "switch_timeout": "60s", "quiet": "4s"}
        return {
            "name": self.group,
            "way": "cutover",
            "switch": command,
            **timing,
            "instances": [{"name": name} for name in self.names],
            **keys,
        }

    def spec(self) -> GroupSpec:
        """The same as a cluster file's group is read."""
        entry = self.entry()
        instances = tuple(InstanceSpec(name, switch=tuple(entry["switch"])) for name in self.names)
        return GroupSpec(
            self.group,
            instances,
            bake=16.0,
            commit_within=15.0,
            switch_timeout=60.0,
            way=GroupWay.CUTOVER,
            quiet=4.0,
            side_by_side=self.side_by_side,
        )

    def switch_all(self, kind: str) -> None:
        """By its own command, one after another."""
        for name in self.names:
            jvm_instance.switch(self.folder, name, kind)

    def pid(self, name: str) -> int:
        """The instance's process."""
        pid = jvm_instance.find(self.folder, name)
        assert pid is not None, f"{name} does not run"
        return pid

    def end(self) -> None:
        """End all instances, whatever they run as."""
        for name in self.names:
            (self.folder / f"{name}.deaf").unlink(missing_ok=True)
        self.switch_all("stopped")

    def lives(self) -> Iterator[list[dict[str, Any]]]:
        """What each life told, in the order of its log."""
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines(keepends=True)
            yield [json.loads(line) for line in lines if line.endswith("}\n") and line.startswith("{")]

    def processed(self) -> Counter[Record]:
        """Each record that was processed, and how often."""
        return Counter(record for life in self.lives() for line in life for record in _records(line))

    def account(self, acked: set[Record]) -> Account:
        """The acknowledged records against the processed ones."""
        processed, uncommitted = self.processed(), 0
        for life in self.lives():
            since = [line["name"] for line in life]
            last = len(since) - since[::-1].index("committed") if "committed" in since else 0
            uncommitted += sum(len(list(_records(line))) for line in life[last:])
        last_of: dict[tuple[str, int], int] = {}
        for topic, partition, offset in processed:
            last_of[topic, partition] = max(offset, last_of.get((topic, partition), -1))
        lost = acked - processed.keys()
        skipped = sum(offset < last_of.get((topic, partition), -1) for topic, partition, offset in lost)
        repeated = sum(count - 1 for count in processed.values())
        return Account(len(acked), len(processed), len(lost), skipped, repeated, uncommitted)


@dataclass
class CutoverGroup:
    """The application as a rehearsal starts it: a group that its cluster file has cut over."""

    group: str
    topic: str
    commit_within: str = "15s"
    running: JvmApplication | None = None

    @property
    def instances(self) -> int:
        """How many processes it has."""
        return JvmApplication.instances

    def entry(self, folder: Path) -> dict[str, Any]:
        """Its group in the cluster file."""
        return JvmApplication(folder, "", "", self.group, self.topic).entry(bake="0s", commit_within=self.commit_within)

    def start(self, folder: Path, bootstrap: str, zookeeper: str, _events: Path) -> None:
        """As its old version; what it processes is in logs of its own."""
        self.running = JvmApplication(folder, bootstrap, zookeeper, self.group, self.topic)
        self.running.prepare()
        self.running.switch_all("zookeeper")

    def stop(self, _folder: Path) -> None:
        """As whatever it runs."""
        if self.running is not None:
            self.running.end()

    def account(self, acked: set[Record], seconds: float = 120.0) -> Account:
        """By its own log, of what was acknowledged in its topic: at once if it has processed all of it, or after so many seconds."""
        if self.running is None:
            raise ValueError(f"{self.group} was never started")
        deadline = time.monotonic() + seconds
        while not acked <= self.running.processed().keys() and time.monotonic() < deadline:
            time.sleep(0.5)
        return self.running.account(acked)


def _records(line: dict[str, Any]) -> Iterator[Record]:
    if line["name"] == "processed":
        yield line["topic"], line["partition"], line["offset"]
    elif line["name"] == "records_consumed":
        for each in line["partitions"]:
            for offset in range(each["minOffset"], each["maxOffset"] + 1):
                yield each["topic"], each["partition"], offset


@dataclass
class Load:
    """Records to every partition of a topic in turn, `rate` a second; what was acknowledged is in `acked`."""

    bootstrap: str
    topic: str
    partitions: int
    rate: float = 200.0
    acked: set[Record] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 5, "acks": "all", "enable.idempotence": True}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """No more records; those that were sent are acknowledged."""
        self._over.set()
        self._thread.join(60.0)
        self._producer.flush(30.0)

    def _run(self) -> None:
        number = 0
        while not self._over.wait(0.05):
            for _ in range(max(1, round(self.rate / 20))):
                self._producer.produce(self.topic, b"a record", partition=number % self.partitions, on_delivery=self._told)
                number += 1
            self._producer.poll(0)

    def _told(self, error: object, message: Any) -> None:
        if error is None:
            self.acked.add((message.topic(), message.partition(), message.offset()))
