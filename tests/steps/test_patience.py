"""How long a step waits, over how many runs, and how often it tries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Cause, ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, Policy
from airflow_provider_kmigrate.exceptions import Failed, TimedOut
from airflow_provider_kmigrate.observe import reads
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.run import Step, run_step
from tests.steps.phases import controllers
from tests.steps.sim import SimCluster
from tests.steps.sim_hands import SimHost

WHY = (Reason("T01", "not yet"),)


class Scripted(Step):
    """Decides by a function of the seconds since its first observation."""

    name = "scripted"
    fields = Fields.BROKERS
    patience = 100.0
    interval = 1.0

    def __init__(self, script):
        self._script = script

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        return self._script(view.taken_at - first.taken_at)

    def act(self, context, act):
        pass


def test_patience_ends_however_often_the_wait_was_handed_over(tmp_path):
    cluster, step = SimCluster(), Scripted(lambda _: Wait(WHY))
    for _ in range(3):
        assert isinstance(run_step(step, cluster.context(tmp_path), sync_for=30.0), Wait)
        step = Scripted(lambda _: Wait(WHY)).resume(step.progress)
    with pytest.raises(TimedOut):
        run_step(step, cluster.context(tmp_path), sync_for=30.0)


def test_a_healthy_wait_uses_up_no_timeout_and_is_deferred_all_the_same(tmp_path):
    cluster = SimCluster()
    step = Scripted(lambda _: Wait(WHY, healthy=True))
    assert isinstance(run_step(step, cluster.context(tmp_path), sync_for=500.0), Wait)
    assert step.progress.waited_seconds < 2.0


def test_patience_begins_again_when_health_is_lost(tmp_path):
    cluster = SimCluster()
    began = cluster.clock.time
    with pytest.raises(TimedOut):
        run_step(Scripted(lambda seconds: Wait(WHY, healthy=seconds < 300.0)), cluster.context(tmp_path))
    assert 399.0 < cluster.clock.time - began < 405.0


@pytest.mark.parametrize("harmless", [Verb.START, Verb.START_CONTROLLER, Verb.ELECT])
def test_nothing_is_stopped_in_the_seconds_after_zookeepers_return(tmp_path, harmless):
    """A broker was stopped 0.5 s after it, when others were just falling out of their ISRs."""
    acted = []

    class Gone(SimCluster):
        def observe(self, *asked):
            view = super().observe(*asked)
            return replace(view, zk=None) if self.observations == 2 else view

    class Acting(Scripted):
        fields = Fields.BROKERS | Fields.ZOOKEEPER

        def act(self, context, act):
            acted.append((act.verb, context.clock.monotonic() - began))

    def script(_):
        if cluster.observations == 1:
            return Wait(WHY)
        return (
            Done("there")
            if [verb for verb, _ in acted] == [harmless, "restart"]
            else Act(Verb.RESTART if acted else harmless, "now")
        )

    cluster = Gone()
    began = cluster.clock.monotonic()
    assert run_step(Acting(script), cluster.context(tmp_path)) == Done("there")
    (_, started), (_, restarted) = acted
    assert started < 2.0, "what is down may come up at once"
    assert restarted - started >= 4.0


def test_without_zookeeper_for_good_nothing_is_waited_for(tmp_path):
    class Off(SimCluster):
        def observe(self, *asked):
            return replace(super().observe(*asked), zk=None)

    acts = iter([Act(Verb.RESTART, "now"), Done("there")])

    class Asking(Scripted):
        fields = Fields.BROKERS | Fields.ZOOKEEPER

    cluster = Off()
    began = cluster.clock.monotonic()
    assert run_step(Asking(lambda _: next(acts)), cluster.context(tmp_path)) == Done("there")
    assert cluster.clock.monotonic() - began < 2.0


def test_observations_that_are_always_too_old_to_act_on_end(tmp_path):
    class Sleepy(SimCluster):
        def observe(self, *asked):
            view = super().observe(*asked)
            self.clock.time += 6.0
            return view

    with pytest.raises(TimedOut, match="at most 5 s are allowed"):
        run_step(Scripted(lambda _: Act(Verb.RESTART_LEADER, "now")), Sleepy().context(tmp_path))


def test_an_act_gives_new_patience(tmp_path):
    cluster = SimCluster()
    acted = []

    def script(seconds):
        if seconds > 90.0 and not acted:
            acted.append(seconds)
            return Act(Verb.RESTART_LEADER, "now")
        return Wait(WHY) if seconds < 180.0 else Done("there")

    assert run_step(Scripted(script), cluster.context(tmp_path)) == Done("there")


def test_acting_in_vain_ends(tmp_path):
    acted = []

    def script(_):
        acted.append(1)
        return Act(Verb.RESTART_LEADER, "again")

    with pytest.raises(Failed, match="'restart leader' 5 times"):
        run_step(Scripted(script), SimCluster().context(tmp_path))
    assert len(acted) == 6


class Crashing(SimCluster):
    """Broker 0 dies whenever it is started in migration mode."""

    def start(self, node):
        super().start(node)
        if node.role is NodeRole.BROKER and node.id == 0:
            super().stop(node)
            self.registered.discard(0)


class Logged(SimHost):
    def log_tail(self, node, lines=40):
        return f"the end of the log of {node.name}"


def test_a_broker_that_dies_at_every_start_is_started_a_few_times_and_its_log_is_shown(tmp_path):
    cluster = Crashing()
    context = cluster.context(tmp_path)
    context.tools.host = lambda _: Logged(cluster)
    controllers(cluster, context)
    said = []
    with pytest.raises(Failed, match="the end of the log of broker 0"):
        run_step(
            RollBroker(cluster.spec.brokers[0], BrokerMode.MIGRATION, Policy(canary_bake=0.0)), replace(context, say=said.append)
        )
    assert cluster.nodes[NodeRole.BROKER, 0].starts == 1 + 5
    assert said.count("Broker 0 has ended again after its start. the end of the log of broker 0") == 5, (
        "before each start after the first"
    )


class Unreachable(SimHost):
    def log_tail(self, node, lines=40):
        raise Failed(f"{node.name}: no log")


def test_a_log_that_cannot_be_read_keeps_no_node_down(tmp_path):
    cluster = Crashing()
    context = cluster.context(tmp_path)
    context.tools.host = lambda _: Unreachable(cluster)
    controllers(cluster, context)
    said = []
    with pytest.raises(Failed, match="broker 0: no log"):
        run_step(
            RollBroker(cluster.spec.brokers[0], BrokerMode.MIGRATION, Policy(canary_bake=0.0)), replace(context, say=said.append)
        )
    assert cluster.nodes[NodeRole.BROKER, 0].starts == 1 + 5
    assert said.count("Broker 0 has ended again after its start. Its log was not read: broker 0: no log") == 5


class Unread(SimCluster):
    """Every observation misses ZooKeeper, the partitions and one controller."""

    gone = (
        replace(reads.ZOOKEEPER, text="ZooKeeper was not read: refused"),
        replace(reads.PARTITIONS, text="No broker reported the partitions: late"),
        Reason("G23", "Controller 3000 did not answer: refused", cause=Cause.UNREAD_CONTROLLER),
    )

    def observe(self, what, nodes=(), groups=()):
        return replace(super().observe(what, nodes, groups), unknowns=self.gone)


def test_a_wait_says_why_something_of_the_cluster_was_not_read(tmp_path):
    said: list[str] = []
    context = replace(Unread().context(tmp_path), say=said.append)
    reasons = (*WHY, Unread.gone[0])  # one that says so itself
    with pytest.raises(TimedOut, match="No broker reported the partitions: late"):
        run_step(Scripted(lambda _: Wait(reasons)), context)
    assert {line.count("No broker reported the partitions: late") for line in said} == {1}
    assert {line.count("ZooKeeper was not read: refused") for line in said} == {1}
    assert not [line for line in said if "Controller 3000" in line], "controllers are not there yet for half of a migration"


class OtherKey(Unread):
    """The machine of broker 0 has another host key; its agent was asked for the process and for the files."""

    gone = tuple(
        Reason("M06", "The host of broker 0 did not answer: its host key is new", cause=cause, node="broker 0", certain=True)
        for cause in (Cause.UNREAD_PROCESS, Cause.UNREAD_FILES)
    )


def test_a_wait_names_the_error_of_a_machine_once_and_what_to_do_about_it(tmp_path):
    said: list[str] = []
    context = replace(OtherKey().context(tmp_path), say=said.append)
    with pytest.raises(TimedOut, match="its host key is new"):
        run_step(Scripted(lambda _: Wait(WHY)), context)
    [first, *_] = said
    assert first.count("[M06]") == 1
    assert "see M06 in the runbook" in first


@pytest.mark.parametrize(("cause", "shown"), [(Cause.CONTROLLER_UNRESPONSIVE, True), (Cause.BROKER_UNRESPONSIVE, False)])
def test_a_wait_for_a_node_carries_that_nodes_own_error(tmp_path, cause, shown):
    said: list[str] = []
    context = replace(Unread().context(tmp_path), say=said.append)
    with pytest.raises(TimedOut):
        run_step(Scripted(lambda _: Wait((Reason("G23", "It does not answer.", cause=cause),))), context)
    assert ("Controller 3000 did not answer: refused" in said[0]) is shown


def test_what_is_done_says_nothing_of_what_was_not_read(tmp_path):
    said: list[str] = []
    run_step(Scripted(lambda _: Done("all")), replace(Unread().context(tmp_path), say=said.append))
    assert not [line for line in said if "not read" in line]
