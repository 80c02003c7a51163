"""Driver `gone`: a machine that is dead for good, as the cluster file declares it. Its node is stopped and has no files."""

from __future__ import annotations

from math import inf
from typing import Never

from airflow_provider_kmigrate.clients.hosts.agent import Restart
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import NodeFiles, Process, ProcessState, Reason
from airflow_provider_kmigrate.exceptions import Refused


class Nothing:
    """The look at a machine that is gone."""

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
    """`hosts.Host` for nodes of driver `gone`: looked at like a stopped node, and whatever would change it is refused (M07)."""

    def look(self, node: NodeSpec) -> Nothing:
        return Nothing(node)

    def status(self, node: NodeSpec) -> Process:
        return self.look(node).process()

    def files(self, node: NodeSpec) -> NodeFiles:
        return self.look(node).files()

    def log_tail(self, node: NodeSpec, lines: int = 40) -> str:
        del lines
        return f"{node.name} is gone: it has no log"

    def stop(self, node: NodeSpec, token: int) -> float:
        del token  # only one whose endpoint answers is asked to stop: it lives
        self._refuse(node)

    def read_properties(self, node: NodeSpec) -> str:
        self._refuse(node)

    def start(self, node: NodeSpec, token: int) -> None:
        del token
        self._refuse(node)

    def restart(self, node: NodeSpec, how: Restart, token: int) -> float:
        del how, token
        self._refuse(node)

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        del text, token
        self._refuse(node)

    def kept_as(self, node: NodeSpec, text: str) -> str:
        del text
        self._refuse(node)

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        del cluster_id, release, token
        self._refuse(node)

    def put_meta(self, node: NodeSpec, folder: str, text: str, token: int) -> None:
        del folder, text, token
        self._refuse(node)

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        del cluster_id, token
        self._refuse(node)

    def _refuse(self, node: NodeSpec) -> Never:
        raise Refused.because(Reason("M07", f"{node.name} is declared gone in the cluster file."))
