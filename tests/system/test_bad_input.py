"""What must be refused, on one real cluster in ZooKeeper mode: with the right code, and without a trace.

Each test makes one thing wrong, lets the tool run as the DAG would, compares everything, and mends it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kazoo.client import KazooClient

from airflow_provider_kmigrate.clients.connections import read_connections
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.roll import without_preferred_leader
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.core.node_files.properties import RenderFacts, render_controller_file
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused, SpecError, WrongCluster
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.catalog import build
from airflow_provider_kmigrate.steps.prepare import run_preflight
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from benchmarks import direct
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape, folder_of
from tests.kit.processes import NodeProcess
from tests.system import evidence
from tests.system.edited_file import file_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

CHROOT = "/kafka/main"
MIGRATION = json.dumps(
    {
        "version": 0,
        "kraft_metadata_offset": 97,
        "kraft_controller_id": 3000,
        "kraft_metadata_epoch": 4,
        "kraft_controller_epoch": 4,
    }
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers with a replicated topic."""
    with lent(tmp_path_factory.mktemp("bad") / "cluster", Shape(name="bad", chroot=CHROOT)) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("orders", 6)])
        yield there


@pytest.fixture
def spec(cluster: LocalCluster) -> ClusterSpec:
    return load(cluster.spec_path)


def preflight(context: StepContext) -> None:
    run_preflight(context)


def provision(context: StepContext) -> None:
    direct.step(context, "provision", node=3000)


def roll(context: StepContext) -> None:
    """With the patience of a test for what a migration would wait for."""
    step = build(context.spec, "roll", {"node": 0, "target": BrokerMode.MIGRATION})
    step.patience = 2.0
    run_step(step, context)


def finalize(context: StepContext) -> None:
    direct.step(context, "finalize", node=3000)


@contextmanager
def tried(cluster: LocalCluster, attempt: Callable[[StepContext], None], **changes: Any) -> Iterator[StepContext]:
    """A world to try it in; nothing is different afterwards but, where the attempt may act, who holds the cluster."""
    acting = attempt is not preflight
    before = evidence.footprint(cluster, fence=not acting)
    try:
        with direct.context(cluster, acting=acting, **changes) as context:
            yield context
    finally:
        assert evidence.footprint(cluster, fence=not acting) == before


def codes_of(
    cluster: LocalCluster,
    attempt: Callable[[StepContext], None],
    kind: type[KMigrateError] = Refused,
    **changes: Any,
) -> set[str]:
    """The codes with which an attempt is refused; `changes` as for `direct.context`."""
    with pytest.raises(kind) as refused, tried(cluster, attempt, **changes) as context:
        attempt(context)
    return {reason.code for reason in getattr(refused.value, "reasons", ())}


@contextmanager
def znode(cluster: LocalCluster, path: str, data: str) -> Iterator[None]:
    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        client.create(path, data.encode())
        yield
    finally:
        client.delete(path)
        client.stop()
        client.close()


def zookeeper_at(cluster: LocalCluster, chroot: str) -> Mapping[str, Mapping[str, Any]]:
    known = dict(read_connections(cluster.plan.connections_path))
    return {**known, "bad_zookeeper": {**known["bad_zookeeper"], "extra": {"chroot": chroot}}}


class TestWrongCluster:
    def test_id(self, cluster: LocalCluster, spec: ClusterSpec) -> None:
        other = replace(spec, cluster_id="q1Sh-9_ISia_zwGINzRvyQ")
        for attempt in (preflight, provision, roll):
            assert codes_of(cluster, attempt, WrongCluster, spec=other) == {"I01"}

    @pytest.mark.parametrize(("chroot", "code"), [("/wrong", "Z01"), ("/kafka/wrong", "Z01"), ("/kafka", "Z01"), ("", "Z01")])
    def test_chroot(self, cluster: LocalCluster, chroot: str, code: str) -> None:
        found = codes_of(cluster, preflight, WrongCluster, connections=zookeeper_at(cluster, chroot))
        assert found == {code}

    def test_connection_missing(self, cluster: LocalCluster) -> None:
        known = {"bad_zookeeper": read_connections(cluster.plan.connections_path)["bad_zookeeper"]}
        assert codes_of(cluster, preflight, connections=known) == {"N03"}


class TestFiles:
    def test_no_broker_id(self, cluster: LocalCluster) -> None:
        def without(text: str) -> str:
            return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("broker.id="))

        with file_of(cluster.plan.brokers[1], without):
            assert codes_of(cluster, preflight) == {"C04"}

    def test_another_brokers_file(self, cluster: LocalCluster) -> None:
        with file_of(cluster.plan.brokers[1], lambda text: text.replace("broker.id=1", "broker.id=2")):
            assert "M01" in codes_of(cluster, preflight)

    def test_another_protocol_version(self, cluster: LocalCluster) -> None:
        with file_of(cluster.plan.brokers[2], lambda text: text.replace("version=3.9", "version=3.8")):
            assert codes_of(cluster, preflight) == {"B1a"}

    def test_another_chroot(self, cluster: LocalCluster) -> None:
        with file_of(cluster.plan.brokers[2], lambda text: text.replace(CHROOT, "/kafka/other")):
            assert "C04" in codes_of(cluster, preflight)


class TestClusterFile:
    def test_a_controller_with_a_brokers_id(self, cluster: LocalCluster, tmp_path: Path) -> None:
        document = yaml.safe_load(cluster.spec_path.read_text())
        document["controllers"][1]["id"] = 2
        path = tmp_path / "bad.yaml"
        path.write_text(yaml.safe_dump(document))
        with pytest.raises(SpecError) as refused:
            load(path)
        assert [reason.code for reason in refused.value.reasons] == ["F04"]

    def test_a_controller_with_the_id_of_a_broker_that_is_not_in_the_file(self, cluster: LocalCluster, spec: ClusterSpec) -> None:
        controllers = (replace(spec.controllers[0], id=2), *spec.controllers[1:])
        other = replace(spec, brokers=spec.brokers[:2], controllers=controllers)
        assert codes_of(cluster, preflight, spec=other) >= {"B2b"}

    def test_a_broker_left_out(self, cluster: LocalCluster, spec: ClusterSpec) -> None:
        assert codes_of(cluster, preflight, spec=replace(spec, brokers=spec.brokers[:2])) >= {"G36"}


class TestLeftovers:
    def test_migration(self, cluster: LocalCluster) -> None:
        with znode(cluster, "/migration", MIGRATION):
            assert codes_of(cluster, preflight) == {"P06"}
            assert codes_of(cluster, provision) == {"P01", "P06"}
            assert codes_of(cluster, roll) == {"P01", "P06"}

    def test_a_controllers_directory(self, cluster: LocalCluster) -> None:
        log_dir = Path(f"{cluster.plan.controllers[0].log_dir}")
        folder = log_dir / "__cluster_metadata-0"
        folder.mkdir(parents=True)
        (folder / "quorum-state").write_text("{}")
        try:
            assert codes_of(cluster, preflight) == {"G04"}
            assert codes_of(cluster, provision) == {"G04"}
        finally:
            (folder / "quorum-state").unlink()
            folder.rmdir()
            log_dir.rmdir()


class TestNodes:
    def test_a_host_that_cannot_be_reached(self, cluster: LocalCluster, spec: ClusterSpec) -> None:
        broken = ("sh", "-c", "echo 'ssh: no route to host' >&2; exit 255")
        for connect, code in ((broken, "U04"), (("sh", "-c", "exit 1"), "M03")):
            other = evidence.with_broker(spec, 0, driver="agent", connect=connect)
            assert codes_of(cluster, preflight, spec=other) == {code}

    def test_a_roll_and_a_finalization_that_come_too_early_are_refused(self, cluster: LocalCluster) -> None:
        assert codes_of(cluster, roll) == {"P01"}
        assert codes_of(cluster, finalize) == {"P01"}

    def test_a_controller_without_the_flag(self, cluster: LocalCluster, spec: ClusterSpec) -> None:
        """Formatted by another tool, for another release."""
        alone = replace(spec, controllers=spec.controllers[:1])
        with controller_by_hand(cluster, alone, FileStage.CONTROLLER_FINAL, "3.8-IV0"):
            assert codes_of(cluster, preflight, spec=alone) == {"G04", "G44", "B1a"}
            assert codes_of(cluster, provision, spec=alone) == {"G44"}
            assert codes_of(cluster, roll, spec=alone) == {"G44"}
            assert codes_of(cluster, finalize, spec=alone) == {"P01"}

    def test_a_dead_broker_and_its_partitions(self, cluster: LocalCluster, spec: ClusterSpec) -> None:
        process = NodeProcess(folder_of(spec.brokers[2]))
        process.wait_gone(process.signal(signal.SIGTERM), 60.0)
        try:
            assert codes_of(cluster, preflight) >= {"R01", "S02"}
        finally:
            cluster.up()
        with direct.context(cluster) as context:
            view = wait_for(
                lambda: context.observer.observe(Fields.PARTITIONS),
                lambda view: not any(partition.is_under_replicated for partition in view.partitions or ()),
                "every replica back in its ISR",
                timeout=90,
            )
            context.tools.admin.elect_preferred(
                view.partitions or (), context.fence
            )  # or Kafka does, at any time, beneath the next test
            wait_for(
                lambda: context.observer.observe(Fields.PARTITIONS),
                lambda view: not without_preferred_leader(view),
                "the preferred leaders",
            )

    def test_preflight_finds_no_blocker_once_every_fault_is_fixed(self, cluster: LocalCluster) -> None:
        for node in cluster.plan.brokers:  # the tests above have edited some just before a start, which is R13
            os.utime(node.hosts.properties, (0, 0))
        with tried(cluster, preflight) as context:
            assert {finding.severity for finding in run_preflight(context)} <= {Severity.WARN}


@contextmanager
def controller_by_hand(cluster: LocalCluster, spec: ClusterSpec, stage: FileStage, release: str) -> Iterator[None]:
    """Controller 3000 as a stranger would start it, until it answers; its directory and file are gone afterwards."""
    node = cluster.plan.controllers[0]
    original = Path(cluster.plan.brokers[0].hosts.properties).read_text()
    text = render_controller_file(original, node, stage, RenderFacts.of(spec, "3.9"))
    with direct.context(cluster) as context:
        host = context.tools.host(node)
        host.put_properties(node, text, context.fence.token)
        host.format_storage(node, spec.cluster_id, release, context.fence.token)
        host.start(node, context.fence.token)
        try:
            wait_for(
                lambda: context.observer.observe(Fields.CONTROLLERS),
                lambda view: view.metadata_version is not None,
                "its quorum",
                90,
            )
            yield
        finally:
            process = NodeProcess(folder_of(node))
            process.wait_gone(process.signal(signal.SIGKILL), 30.0)
            for path in sorted(Path(f"{node.log_dir}").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            Path(f"{node.log_dir}").rmdir()
            Path(node.hosts.properties).unlink()
