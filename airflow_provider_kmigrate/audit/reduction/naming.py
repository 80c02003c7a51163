"""Numbers for names: partitions (`places`), groups' views of partitions (`readers`), members (`owners`, in the order of their names)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from airflow_provider_kmigrate.audit.algebra import Ints, codes, column
from airflow_provider_kmigrate.audit.reduction.history import Control
from airflow_provider_kmigrate.audit.reduction.screen import Chains, Commits
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition

_PLACE: Final = ("topic", "part")
_READER: Final = ("consumer_group", *_PLACE)
_OWNER: Final = ("member",)
_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Naming:
    """Every partition that was delivered or acknowledged, every reader that wants one or was delivered it, every member."""

    places: Mapping[TopicPartition, int]
    readers: Mapping[GroupPartition, int]
    owners: Mapping[tuple[str], int]

    @classmethod
    def of(cls, deliveries: pa.Table, acks: pa.Table, control: Control) -> Naming:
        acked = {TopicPartition(*name) for name in _distinct(acks, _PLACE)}
        readers = control.wanted(acked, {GroupPartition(*name) for name in _distinct(deliveries, _READER)})
        places = acked | {key.where for key in readers}
        return cls(_numbered(sorted(places)), _numbered(readers), _numbered(sorted(_distinct(deliveries, _OWNER))))

    @property
    def place_of(self) -> Ints:
        """Of each reader the place."""
        return np.array([self.places[key.where] for key in self.readers], np.int64)

    def places_in(self, table: pa.Table) -> Ints:
        return _numbers(table, _PLACE, self.places)

    def readers_in(self, table: pa.Table) -> Ints:
        """Of each row the reader; -1: one that neither wants nor was delivered anything."""
        return _numbers(table, _READER, self.readers)

    def chains(self, deliveries: pa.Table) -> Chains:
        """Chains of deliveries in numbers."""
        named = self.places_in(deliveries), self.readers_in(deliveries), _numbers(deliveries, _OWNER, self.owners)
        return Chains(*named, *(column(deliveries, name) for name in ("o_lo", "o_hi", "seq_lo", "seq_end", "t_lo", "t_hi")))

    def commits(self, table: pa.Table) -> Commits:
        """Commits of known readers."""
        commits = Commits(self.readers_in(table), column(table, "hi"), column(table, "t_ms"))
        return commits.take(commits.reader >= 0)


def _numbered(names: Iterable[_Name]) -> dict[_Name, int]:
    return {name: number for number, name in enumerate(names)}


def _distinct(table: pa.Table, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return _combinations(table, names)[0]


def _numbers(table: pa.Table, names: tuple[str, ...], index: Mapping[Any, int]) -> Ints:
    """Of each row the number of what its columns name; -1: not in the index."""
    found, code = _combinations(table, names)
    return np.array([index.get(name, -1) for name in found], np.int64)[code]


def _combinations(table: pa.Table, names: tuple[str, ...]) -> tuple[list[tuple[Any, ...]], Ints]:
    """The distinct combinations of the columns' values, and of each row which one it is."""
    columns = [table[name] for name in names]
    _, rows, code = np.unique(codes(columns), return_index=True, return_inverse=True)
    values = (column.take(pa.array(rows, pa.int64())).to_pylist() for column in columns)
    return list(zip(*values, strict=True)), code
