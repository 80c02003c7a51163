"""Nodes of a local cluster that are killed, paused or starved while something lasts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from tests.kit.localcluster import ready
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Plan, folder_of
from tests.kit.processes import NodeProcess
from tests.waiting import beside

_EXPIRES_S = 60.0
_SLICE_S = 0.2  # a starved process is stopped and let go on so often


@contextmanager
def paused(process: NodeProcess) -> Iterator[None]:
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


@contextmanager
def down(process: NodeProcess, cluster: LocalCluster) -> Iterator[None]:
    """Dead while it lasts; whatever is down is started afterwards."""
    process.wait_gone(process.signal(signal.SIGKILL), 30.0)
    try:
        yield
    finally:
        cluster.up()


@contextmanager
def killed(*nodes: NodeSpec) -> Iterator[None]:
    """Dead while it lasts; the caller starts them afterwards."""
    for node in nodes:
        process = of(node)
        process.wait_gone(process.signal(signal.SIGKILL), 30.0)
    yield


@contextmanager
def dead(plan: Plan, *nodes: NodeSpec) -> Iterator[None]:
    """Killed, and started again afterwards, these and no others; a broker once its old registration is gone, or it would exit."""
    with killed(*nodes):
        try:
            yield
        finally:
            with ready.registry(plan) as registry:
                for node in nodes:
                    ready.wait_expired(node, registry, time.monotonic() + _EXPIRES_S)
                    of(node).start()


@contextmanager
def starved(process: NodeProcess, share: float) -> Iterator[None]:
    """It gets about this share of its time, as behind other load or in a long collection of garbage."""

    def starve(over: threading.Event) -> None:
        while not over.is_set():
            process.signal(signal.SIGSTOP)
            over.wait(_SLICE_S * (1.0 - share))
            process.signal(signal.SIGCONT)
            over.wait(_SLICE_S * share)

    try:
        with beside(starve):
            yield
    finally:
        process.signal(signal.SIGCONT)


def of(node: NodeSpec) -> NodeProcess:
    return NodeProcess(folder_of(node))
