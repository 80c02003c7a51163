"""An ensemble without znodes, for observations of what clusters store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_provider_kmigrate.exceptions import KMigrateError


class NoZnodes:
    """An ensemble that has none of it."""

    def __init__(self, brokers: tuple[str, ...] = (), refuses: KMigrateError | None = None) -> None:
        self._brokers, self._refuses = brokers, refuses

    def children(self, path: str) -> list[str]:
        if self._refuses is not None:
            raise self._refuses
        return list(self._brokers) if path == "/config/brokers" else []

    def read_children(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        return ((name, b'{"version":1,"config":{"log.retention.ms":"1"}}') for name in names)

    def children_by_path(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        return ((path, []) for path in paths)

    def read(self, path: str) -> None:
        if self._refuses is not None:
            raise self._refuses
