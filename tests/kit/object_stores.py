"""An object store in memory, with the faults that stores have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from airflow_provider_kmigrate.clients.object_log import ObjectExists
from airflow_provider_kmigrate.exceptions import Unavailable


@dataclass
class MemoryStore:
    """`before_create`: called once before the next creation, such as another writer's. `lost`: so many answers of creations are lost.

    `is_away`: nothing is answered. `newest_listed`: lists have the objects up to that name. `creates_twice`: it knows no condition. `is_read_only`: this
    identity may create nothing.
    """

    address: str = "memory://kmigrate"
    objects: dict[str, bytes] = field(default_factory=dict)
    before_create: Callable[[], None] | None = None
    lost: int = 0
    is_away: bool = False
    newest_listed: str = "~"
    creates_twice: bool = False
    is_read_only: bool = False
    requests: int = 0
    _lock: Lock = field(default_factory=Lock)

    def create(self, name: str, content: bytes) -> None:
        self._answer()
        if self.is_read_only:
            raise Unavailable("403 Forbidden")
        act, self.before_create = self.before_create, None
        if act is not None:
            act()
        with self._lock:
            if name in self.objects and not self.creates_twice:
                raise ObjectExists(name)
            self.objects[name] = content
        if self.lost:
            self.lost -= 1
            raise Unavailable("the answer was lost")

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        self._answer()
        return [self.objects.get(name) for name in names]

    def list_names(self) -> list[str]:
        self._answer()
        return [name for name in sorted(self.objects) if name <= self.newest_listed]

    def _answer(self) -> None:
        self.requests += 1
        if self.is_away:
            raise Unavailable("no answer")
