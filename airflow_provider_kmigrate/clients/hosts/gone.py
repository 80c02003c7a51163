"""Driver `gone`: a machine that is dead for good, as the cluster file declares it. Its node is stopped and has no files."""

from __future__ import annotations

from math import inf
from typing import Never

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import NodeFiles, Process, ProcessState, Reason
from airflow_provider_kmigrate.exceptions import Refused


class GoneObservation:
    """What is observed of a machine that is gone."""

    def __init__(self, node: NodeSpec) -> None:
        self._node = node

    def process(self) -> Process:
        """It is stopped."""
        return Process(ProcessState.STOPPED, killed_after=inf)

    def files(self) -> NodeFiles:
        """There is no file, and the directory is not formatted."""
        meta: dict[str, dict[str, str]] | None = {self._node.log_dir: {}} if self._node.log_dir else None
        return NodeFiles(None, meta, has_metadata_log=False)


class GoneHost:
    """`hosts.Host` for nodes of driver `gone`: observed like a stopped node; every other verb is refused."""

    def observe(self, node: NodeSpec) -> GoneObservation:
        """A stopped node."""
        return GoneObservation(node)

    def status(self, node: NodeSpec) -> Process:
        """As `observe`."""
        return self.observe(node).process()

    def files(self, node: NodeSpec) -> NodeFiles:
        """As `observe`."""
        return self.observe(node).files()

    def log_tail(self, node: NodeSpec, lines: int = 40) -> str:
        """One sentence in place of a log."""
        del lines
        return f"{node.name} is gone: it has no log"

    def refuse(self, node: NodeSpec, *_given: object, **_named: object) -> Never:
        """Raises `Refused` (M07). Only a node whose endpoint answers is asked to stop: it lives."""
        raise Refused.because(Reason("M07", f"{node.name} is declared gone in the cluster file."))

    start = stop = restart = refuse
    read_properties = put_properties = kept_as = refuse
    format_storage = put_meta = wipe_storage = refuse
