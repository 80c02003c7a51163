"""A group of two or more real old consumers that a rehearsal's cluster file has moved off ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.old_consumer.instance import Application, restart, switch_command


@dataclass(frozen=True, slots=True)
class OldApplication:
    """`instances` processes that read one topic, begun as `kind`; each restarts by `tests.old_consumer.instance`."""

    group: str
    topic: str
    instances: int = 2
    bake: str = "16s"
    kind: str = "zookeeper"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its instances."""
        return tuple(f"{self.group}{number}" for number in range(self.instances))

    def entry(self, folder: Path) -> dict[str, Any]:
        """Its group in the cluster file."""
        return {
            "name": self.group,
            "switch": switch_command(folder),
            "bake": self.bake,
            "commit_within": "15s",
            "switch_timeout": "90s",
            "instances": [{"name": name} for name in self.names],
        }

    def start(self, folder: Path, bootstrap: str, zookeeper: str, events: Path) -> None:
        """All of them. They take some seconds to join."""
        Application(bootstrap, zookeeper, self.group, self.topic, str(events.resolve())).write(folder)
        self._each(folder, self.kind)

    def stop(self, folder: Path) -> None:
        """As whatever they run; those that never ran, too."""
        if folder.exists():
            self._each(folder, "stop")

    def _each(self, folder: Path, kind: str) -> None:
        for name in self.names:
            restart(folder, name, kind)
