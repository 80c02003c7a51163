"""A tool that is killed, or suspended, anywhere in a step and run again ends in the same state, with one start of each node a pass."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape, folder_of
from tests.system import evidence
from tests.system.tool import REFUSED
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=130), pytest.mark.timeout(360)]

ROOT = Path(__file__).resolve().parents[2]
CONTROLLER = 3000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The tests of this file take it through one migration, each a step further; each first makes sure of the steps before its own."""
    with lent(tmp_path_factory.mktemp("killed") / "cluster", Shape(name="killed", controllers=1)) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 12)])
        with direct.context(there) as context:
            direct.prepare(context)
        yield there


class Tool:
    """The step in a process of its own; killed at the end, whatever it does."""

    def __init__(self, cluster: LocalCluster, kind: str, arguments: dict[str, Any], *trap: str) -> None:
        argv = [sys.executable, "-m", "tests.system.tool", str(cluster.folder), kind, json.dumps(arguments), *trap]
        self.process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ends(self, timeout: float = 120.0) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, output

    def wait_suspended(self) -> None:
        def suspended() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return bool(psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)

        wait_until(suspended, "the tool comes to the point")


def run(cluster: LocalCluster, kind: str, arguments: dict[str, Any], *trap: str, timeout: float = 120.0) -> tuple[int, str]:
    with Tool(cluster, kind, arguments, *trap) as tool:
        return tool.ends(timeout)


def killed_and_run_again(cluster: LocalCluster, kind: str, arguments: dict[str, Any], point: str) -> None:
    code, output = run(cluster, kind, arguments, "--at", point, "--signal", "SIGKILL")
    assert code == -signal.SIGKILL, f"it was not killed at {point}: {output}"
    code, output = run(cluster, kind, arguments)
    assert code == 0, output


def starts(cluster: LocalCluster) -> dict[str, int]:
    running = {node.name: node for node in (*cluster.plan.brokers, *cluster.plan.controllers)}
    return {name: evidence.starts(node) for name, node in running.items() if (folder_of(node) / "node.log").exists()}


def next_broker(cluster: LocalCluster, target: BrokerMode) -> NodeSpec:
    """The one whose turn it is, all steps before it done."""
    with direct.context(cluster) as context:
        direct.provision(context)
        if target is BrokerMode.KRAFT:
            direct.roll(context, BrokerMode.MIGRATION)
            direct.copy(context)
        node = direct.to_roll(context, target)
    assert node is not None
    return context.spec.node(NodeRole.BROKER, node)


def check_back(cluster: LocalCluster, node: NodeSpec, target: BrokerMode) -> None:
    with direct.context(cluster) as context:
        view = context.observer.observe(evidence.EVERYTHING)
    assert view.brokers[node.id].mode is target
    assert not any(partition.is_under_replicated for partition in view.partitions or ())


def test_provisioning(cluster: LocalCluster) -> None:
    killed_and_run_again(cluster, "provision", {"node": CONTROLLER}, "formatted")
    with direct.context(cluster) as context:
        direct.step(context, "controllers ready")
    assert starts(cluster)[f"controller {CONTROLLER}"] == 1


@pytest.mark.parametrize(
    ("target", "point"),
    [
        (BrokerMode.MIGRATION, "file put"),
        (BrokerMode.MIGRATION, "stopping"),
        (BrokerMode.MIGRATION, "stopped"),
        (BrokerMode.KRAFT, "started"),
        (BrokerMode.KRAFT, "waiting"),
    ],
)
def test_a_roll(cluster: LocalCluster, target: BrokerMode, point: str) -> None:
    node = next_broker(cluster, target)
    before = starts(cluster)
    killed_and_run_again(cluster, "roll", {"node": node.id, "target": target}, point)
    assert starts(cluster) == before | {node.name: before[node.name] + 1}
    check_back(cluster, node, target)


def test_a_suspended_tool_that_wakes_up_is_refused(cluster: LocalCluster) -> None:
    """It wakes up with the file put and the stop before it, which its successor has long done."""
    node = next_broker(cluster, BrokerMode.KRAFT)
    arguments, before = {"node": node.id, "target": BrokerMode.KRAFT}, starts(cluster)
    with Tool(cluster, "roll", arguments, "--at", "file put", "--signal", "SIGSTOP") as suspended:
        suspended.wait_suspended()
        code, output = run(cluster, "roll", arguments)
        assert code == 0, output
        suspended.process.send_signal(signal.SIGCONT)
        code, output = suspended.ends()
    assert (code, json.loads(output.splitlines()[-1])) == (REFUSED, {"refused": "Fenced"}), output
    assert starts(cluster) == before | {node.name: before[node.name] + 1}
    check_back(cluster, node, BrokerMode.KRAFT)


def test_finalizing(cluster: LocalCluster) -> None:
    with direct.context(cluster) as context:
        direct.roll(context, BrokerMode.KRAFT)
    killed_and_run_again(cluster, "finalize", {"node": CONTROLLER}, "stopped")
    with direct.context(cluster) as context:
        direct.step(context, "finalized")
        assert position_of(context.observer.observe(evidence.EVERYTHING)).phase is Phase.FINALIZED


def test_the_whole_migration_again_changes_nothing(cluster: LocalCluster) -> None:
    before = evidence.footprint(cluster)
    assert starts(cluster) == {**{f"broker {node}": 3 for node in range(3)}, f"controller {CONTROLLER}": 2}
    with direct.context(cluster) as context:
        direct.forward(context)
    assert evidence.footprint(cluster) == before
