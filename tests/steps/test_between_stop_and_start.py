"""A node that an act has stopped is started again, whatever cannot be read or reached in between for a moment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients.holding import Holding
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields, NodeFiles, Partition
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, Refused, TimedOut, Unreachable
from airflow_provider_kmigrate.steps import nodes
from airflow_provider_kmigrate.steps.brokers import RollBackBroker, RollBackCanary, RollBroker
from airflow_provider_kmigrate.steps.controllers import ProvisionController
from airflow_provider_kmigrate.steps.dual_write import start_down_controller
from airflow_provider_kmigrate.steps.rollback import RestoreFlag
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import PreferredLeaders
from tests.steps.phases import EVERYTHING, all_in_migration, all_kraft, controllers, finalization_begun, handed_over
from tests.steps.sim import SimCluster
from tests.steps.sim_hands import SimHost
from tests.steps.sim_nodes import Killed


class Blind(SimCluster):
    """Every observation fails while a broker is down."""

    blind: bool = False

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        down = any(self.nodes[node.role, node.id].running is None for node in self.spec.brokers)
        if self.blind and down:
            raise AuthenticationFailed("the login service is away")
        return super().observe(what, nodes, groups)


def running(cluster: SimCluster, node: NodeSpec) -> bool:
    return cluster.nodes[node.role, node.id].running is not None


def test_an_observation_after_a_slow_stop_that_fails_does_not_keep_the_broker_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Blind()
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    stop = SimHost.stop
    monkeypatch.setattr(SimHost, "stop", lambda host, node, token: stop(host, node, token) + 20.0)
    cluster.blind = True
    run_step(RollBroker(cluster.spec.brokers[1], BrokerMode.MIGRATION, cluster.spec.policy), context)
    assert running(cluster, cluster.spec.brokers[1])


class Stuck(SimCluster):
    """A broker that is down still leads partitions of which others have every record."""

    def observe(self, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view = super().observe(what, nodes, groups)
        down = [node.id for node in self.spec.brokers if not running(self, node)]
        if not down or view.partitions is None:
            return view
        rows = tuple(replace(row, leader=down[0], isr=(*row.isr, down[0])) for row in view.partitions)
        return replace(view, partitions=rows)


@pytest.mark.parametrize(("seconds", "refused"), [(20.0, True), (2.0, False)])
def test_a_slow_stop_that_leaves_leaders_behind_ends_the_step_once_the_broker_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, refused: bool
) -> None:
    cluster = Stuck()
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    stop = SimHost.stop
    monkeypatch.setattr(SimHost, "stop", lambda host, node, token: stop(host, node, token) + seconds)
    with pytest.raises(Refused, match="G12") if refused else contextlib.nullcontext():
        run_step(RollBroker(cluster.spec.brokers[1], BrokerMode.MIGRATION, cluster.spec.policy), context)
    assert running(cluster, cluster.spec.brokers[1])


def test_a_slow_stop_of_a_degraded_first_broker_says_nothing_of_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Stuck()
    context = cluster.context(tmp_path)
    controllers(cluster, context)
    first = cluster.spec.brokers[1]
    run_step(RollBroker(first, BrokerMode.MIGRATION, cluster.spec.policy), context)
    stop = SimHost.stop
    monkeypatch.setattr(SimHost, "stop", lambda host, node, token: stop(host, node, token) + 20.0)
    assert isinstance(run_step(RollBackCanary(first, BrokerMode.ZOOKEEPER, cluster.spec.policy), context), Done)


@pytest.mark.parametrize("act", [nodes.stop, nodes.restart])
@pytest.mark.parametrize(("role", "hangs"), [(NodeRole.CONTROLLER, True), (NodeRole.BROKER, False)])
def test_a_stop_in_vain_says_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: NodeRole, hangs: bool, act: Callable[[StepContext, NodeSpec], object]
) -> None:
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    node = next(node for node in cluster.spec.nodes() if node.role is role)

    def stop(_host: SimHost, node: NodeSpec, *_: object) -> float:
        raise TimedOut(f"{node.name} still runs")

    monkeypatch.setattr(SimHost, "stop", stop)
    with pytest.raises(TimedOut, match=rf"{role} \d+ still runs\. Next: Read the end of its log\..*clear the task") as raised:
        act(context, node)
    assert ("kill -9" in str(raised.value)) is hangs


def faltering(monkeypatch: pytest.MonkeyPatch, verb: str, times: int, error: KMigrateError) -> list[int]:
    """The host fails so many times at this verb."""
    done, failed = getattr(SimHost, verb, None), [0]

    def fails(host: SimHost, node: NodeSpec, *given: object) -> object:
        if failed[0] < times:
            failed[0] += 1
            raise error
        return done(host, node, *given) if done else None

    monkeypatch.setattr(SimHost, verb, fails, raising=False)
    return failed


def standby(cluster: SimCluster) -> NodeSpec:
    return next(node for node in cluster.spec.controllers if node.id != cluster.leader)


def untouched(cluster: SimCluster, context: StepContext) -> None:
    """Before anything."""


def one_controller(cluster: SimCluster, context: StepContext) -> None:
    """Formatted, and not yet started, when its host falters."""
    run_step(ProvisionController(cluster.spec.controllers[0], cluster.spec.cluster_id), context)


def one_down(cluster: SimCluster, context: StepContext) -> None:
    """As a failover leaves a controller that was killed between its stop and start."""
    all_kraft(cluster, context)
    cluster.stop(standby(cluster))


def brought_up(cluster: SimCluster, context: StepContext) -> None:
    start_down_controller(context, "copy")


ACTS = [(untouched, one_controller), (one_down, brought_up)]


@pytest.mark.parametrize(("begun", "act"), ACTS, ids=lambda given: given.__name__)
def test_a_host_that_is_out_of_reach_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: Callable[..., None], act: Callable[..., None]
) -> None:
    cluster = SimCluster()
    begun(cluster, cluster.context(tmp_path))
    failed = faltering(monkeypatch, "start", 3, Unreachable("ssh: connection refused"))
    act(cluster, cluster.context(tmp_path))
    assert failed == [3]
    asked = cluster.spec.brokers + (cluster.spec.controllers[:1] if begun is untouched else cluster.spec.controllers)
    assert all(running(cluster, node) for node in asked)


def test_a_host_that_stays_out_of_reach_fails_the_step_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimCluster()
    faltering(monkeypatch, "start", 1000, Unreachable("ssh: connection refused"))
    with pytest.raises(Unreachable):
        one_controller(cluster, cluster.context(tmp_path))


def test_a_step_goes_on_after_an_act_whose_machine_stopped_answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two faults of machines in one task would be one more than Airflow's retries."""
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    failed = faltering(monkeypatch, "restart", 2, Unreachable("its machine lost its power"))
    run_step(RollBroker(cluster.spec.brokers[1], BrokerMode.KRAFT, cluster.spec.policy), context)
    assert failed == [2]
    assert cluster.nodes[NodeRole.BROKER, 1].stage is FileStage.KRAFT


def test_a_broker_whose_machine_failed_before_its_restart_is_no_broker_with_a_wrong_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R13 is about a broker that was restarted; this one comes back as it was."""
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    failed = faltering(monkeypatch, "put_properties", 1, Unreachable("its machine lost its power"))
    run_step(RollBroker(cluster.spec.brokers[1], BrokerMode.KRAFT, cluster.spec.policy), cluster.context(tmp_path))
    assert failed == [1]
    assert cluster.nodes[NodeRole.BROKER, 1].stage is FileStage.KRAFT


def test_no_flag_is_restored_once_another_controller_leads_without_one(tmp_path: Path) -> None:
    cluster = SimCluster()
    finalization_begun(cluster, cluster.context(tmp_path))
    context, standby = cluster.context(tmp_path), next(node for node in cluster.spec.controllers if node.id != cluster.leader)
    step = RestoreFlag(standby)
    decision = step.decide(cluster.observe(EVERYTHING), cluster.observe(EVERYTHING))
    assert isinstance(decision, Act)
    cluster.lead(standby.id)
    before = cluster.nodes[NodeRole.CONTROLLER, standby.id].text
    step.act(context, decision)
    assert cluster.nodes[NodeRole.CONTROLLER, standby.id].text == before


def roll_back_one(cluster: SimCluster) -> RollBackBroker:
    return RollBackBroker(cluster.spec.brokers[1], BrokerMode.ZOOKEEPER, cluster.spec.policy)


VERSION_1 = {"/data": {"cluster.id": "c", "version": "1", "node.id": "1"}}


def formatted_again(monkeypatch: pytest.MonkeyPatch, broker: int) -> list[int]:
    """That broker's meta.properties has version 1, with which a plain ZooKeeper broker exits; the starts with it."""
    put, bad = [0], [0]
    files, start = SimHost.files, SimHost.start

    def seen(host: SimHost, node: NodeSpec) -> NodeFiles:
        found = files(host, node)
        return replace(found, meta=VERSION_1) if (node.role, node.id) == (NodeRole.BROKER, broker) and not put[0] else found

    def started(host: SimHost, node: NodeSpec, token: int) -> None:
        bad[0] += (node.role, node.id) == (NodeRole.BROKER, broker) and not put[0]
        start(host, node, token)

    def put_meta(host: SimHost, node: NodeSpec, folder: str, text: str, token: int) -> None:
        host.cluster.mortal.step()
        put[0] += 1

    for name, value in (("files", seen), ("start", started), ("put_meta", put_meta)):
        monkeypatch.setattr(SimHost, name, value, raising=False)
    return bad


def test_a_broker_that_was_left_down_gets_what_its_start_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool died between the stop and the file: the next run must not start the broker without it."""
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    handed_over(cluster, context)
    bad = formatted_again(monkeypatch, 1)
    stop = SimHost.stop

    def stop_and_die(host: SimHost, node: NodeSpec, token: int) -> float:
        stop(host, node, token)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(SimHost, "stop", stop_and_die)
        with pytest.raises(Killed):
            run_step(roll_back_one(cluster), context)
    run_step(roll_back_one(cluster), cluster.context(tmp_path))
    assert bad == [0]
    assert running(cluster, cluster.spec.brokers[1])


def test_a_file_that_cannot_be_written_does_not_keep_the_broker_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    handed_over(cluster, context)
    formatted_again(monkeypatch, 1)
    faltering(monkeypatch, "put_meta", 1000, Failed("no space left"))
    with pytest.raises(Failed, match="no space"):
        run_step(roll_back_one(cluster), context)
    assert running(cluster, cluster.spec.brokers[1]), "it may well start with what it has"


def test_an_act_waits_for_an_observation_that_names_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper went away while its step decided: no source names the cluster, which is unknown, not wrong."""
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    observe, unnamed = SimCluster.observe, [1]

    def away(self: SimCluster, what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        view = observe(self, what, nodes, groups)
        if view.partitions is None or not unnamed or not any(row.leader != row.replicas[0] for row in view.partitions):
            return view
        unnamed.pop()
        return replace(view, zk=None, kafka_cluster_id=None, brokers={}, controllers={})

    monkeypatch.setattr(SimCluster, "observe", away)
    context = cluster.context(tmp_path)
    run_step(PreferredLeaders(6), context)
    assert not unnamed
    assert any("No source reported the cluster id" in text for text in context.say.__self__)  # type: ignore[attr-defined]


def test_an_election_that_no_controller_answers_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimCluster()
    all_in_migration(cluster, cluster.context(tmp_path))
    elect, unanswered = SimCluster.elect_preferred, [1]

    def answers_later(self: SimCluster, partitions: Sequence[Partition], holding: Holding) -> None:
        if unanswered:
            unanswered.pop()
            raise TimedOut("ElectLeaders: no answer within 30 s")
        elect(self, partitions, holding)

    monkeypatch.setattr(SimCluster, "elect_preferred", answers_later)
    run_step(PreferredLeaders(6), cluster.context(tmp_path))
    assert not unanswered
    assert all(row.leader == row.replicas[0] for row in cluster.observe(EVERYTHING).partitions)
