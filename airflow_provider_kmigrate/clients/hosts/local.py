"""Driver `local`: nodes that are plain processes of this machine, each with a folder (`HostSpec.state`) that describes it.

`process.NodeProcess` draws that folder. Used by the local cluster, and by anybody whose brokers run beside Airflow without a
service manager.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.clients.hosts.argv import fill, no_command, node_values
from airflow_provider_kmigrate.clients.hosts.process import Launch, NodeProcess, environment
from airflow_provider_kmigrate.clients.hosts.storage import must_format, must_wipe, refuse_data, set_aside
from airflow_provider_kmigrate.clients.hosts.tokens import admitted
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import NodeFiles, Process
from airflow_provider_kmigrate.exceptions import Failed, TimedOut, Unreachable

_FORMAT_TIMEOUT = 60.0


class LocalHost:
    """`hosts.base.Host` for processes of this machine."""

    def status(self, node: NodeSpec) -> Process:
        """Raises `Unreachable` where the node's folder is missing: that says nothing about a process."""
        return _process(node).find()

    def start(self, node: NodeSpec, token: int) -> None:
        process = _process(node)
        with admitted(process.folder, token):
            process.start(node_values(node))

    def stop(self, node: NodeSpec, token: int) -> float:
        process = _process(node)
        began = time.monotonic()
        with admitted(process.folder, token):
            pid = process.signal(signal.SIGTERM)
        if not process.wait_gone(pid, node.stop_timeout):
            raise TimedOut(f"{node.name} still runs {node.stop_timeout:.0f} s after SIGTERM (pid {pid}); its log: {process.log}")
        return time.monotonic() - began

    def read_properties(self, node: NodeSpec) -> str:
        text = files.read(node.hosts.properties)
        if text is None:
            raise Failed(f"{node.name} has no properties file at {node.hosts.properties}")
        return text

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        with admitted(_process(node).folder, token):
            return files.put(Path(node.hosts.properties), text)

    def files(self, node: NodeSpec) -> NodeFiles:
        return files.look(node)

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        process = _process(node)
        with admitted(process.folder, token):
            seen = self.files(node)
            if must_format(node, seen, cluster_id):
                refuse_data(node, seen)
                _format(node, process.launch(), {"cluster_id": cluster_id, "release": release})

    def put_meta(self, node: NodeSpec, folder: str, text: str, token: int) -> None:
        with admitted(_process(node).folder, token):
            files.put(Path(folder) / files.META, text)

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        with admitted(_process(node).folder, token):
            for folder in must_wipe(node, self.files(node), self.status(node), cluster_id):
                set_aside(node, folder)

    def log_tail(self, node: NodeSpec, lines: int = 40) -> str:
        return _process(node).log_tail(lines)


def _process(node: NodeSpec) -> NodeProcess:
    folder = Path(node.hosts.state)
    if not node.hosts.state or not folder.is_dir():
        raise Unreachable(
            f"{node.name}: there is no folder {node.hosts.state!r} (`state` in the cluster file) that describes its process"
        )
    return NodeProcess(folder)


def _format(node: NodeSpec, launch: Launch, values: Mapping[str, str]) -> None:
    argv = fill(launch.format, node_values(node) | dict(values))
    if not argv:
        raise no_command(f"{node.name}: {node.hosts.state}/launch.json has no command that formats")
    try:
        subprocess.run(argv, env=environment(launch.env), timeout=_FORMAT_TIMEOUT, check=True, capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        raise TimedOut(f"{node.name}: formatting took more than {_FORMAT_TIMEOUT:.0f} s") from error
    except subprocess.CalledProcessError as error:
        raise Failed(f"{node.name}: formatting failed: {(error.stderr or error.stdout).strip()[-2000:]}") from error
    except OSError as error:
        raise Failed(f"{node.name}: cannot run {argv[0]}: {error}") from error
