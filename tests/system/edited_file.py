"""A properties file that is another one on disk for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec


@contextmanager
def file_of(node: NodeSpec, change: Callable[[str], str]) -> Iterator[None]:
    """Another properties file on disk; the process has not read it."""
    path = Path(node.hosts.properties)
    original = path.read_text()
    path.write_text(change(original))
    try:
        yield
    finally:
        path.write_text(original)
