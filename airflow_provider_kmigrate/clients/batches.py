"""Cut long lists of questions into requests of a bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def batches(items: Iterable[Item], size: int) -> Iterator[tuple[Item, ...]]:
    """Tuples of `size` items in the given order, the last one shorter."""
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch
