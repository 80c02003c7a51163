"""What an observation could not read is neither healthy nor a refusal: the step waits for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Reading, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields, NodeFiles, Partition, Quorum
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, Policy
from airflow_provider_kmigrate.core.migration import controllers, roll, waits
from airflow_provider_kmigrate.steps.brokers import RollBackBroker, RollBroker
from airflow_provider_kmigrate.steps.run import with_backup
from benchmarks import direct
from tests.core.back_views import DUAL, STOPPED, equal, handed_over, handover_decision, later
from tests.core.views import ZK, with_controller
from tests.steps.sim import SimCluster


def test_a_voter_that_never_fetched_does_not_follow(tmp_path: Path) -> None:
    cluster = SimCluster()
    direct.provision(cluster.context(tmp_path))
    view = cluster.observe(Fields(0))
    assert isinstance(waits.decide_controllers_ready(view), Done)
    for voters in ({3000: 900, 3001: 900, 3002: -1}, {3000: 900}):
        assert isinstance(waits.decide_controllers_ready(replace(view, quorum=Quorum(3000, 6, 900, voters, {}))), Wait)


def test_no_controller_is_finalized_while_another_voter_lags(tmp_path: Path) -> None:
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    direct.to_dual_write(context)
    before, view = (
        with_backup(context, Fields.FILES, cluster.observe(Fields(0))),
        with_backup(context, Fields.FILES, cluster.observe(Fields(0))),
    )
    for behind, acts in ((200_000, True), (5, False)):
        quorum = Quorum(3000, 6, 200_000, {3000: 200_000, 3001: 200_000, 3002: behind}, {})
        zk = replace(view.zk, migration=replace(view.zk.migration, metadata_offset=199_999))
        decision = controllers.decide_finalize(replace(view, quorum=quorum, zk=zk), before, 3001)
        assert isinstance(decision, Act) == acts, decision


def test_a_topic_made_during_the_look_is_waited_for(tmp_path: Path) -> None:
    """Its partitions were read, its min.insync.replicas were not."""
    cluster = SimCluster()
    direct.provision(cluster.context(tmp_path))
    view = cluster.observe(Fields(0))
    made = Partition("made-just-now", 0, 0, (0, 1, 2), (0, 1, 2))
    decision = roll.decide_restart(replace(view, partitions=(*(view.partitions or ()), made)), 1, BrokerMode.MIGRATION)
    assert isinstance(decision, Wait)
    assert {reason.code for reason in decision.reasons} == {"G00"}


ALL = Reading(~Fields(0), every_node=True)


def decisions_over_time(view: ClusterView, step: RollBroker) -> list[Decision]:
    """The decisions while this is observed for longer than any recovery waits."""
    times = (0, 4, 8.5, 12, 25, 60)
    return [step.next_action(replace(view, taken_at=view.taken_at + at), view, ALL).decision for at in times]


#: The cures of a broker that lacks nothing but a place in ISRs, or leaders: of each, what the cluster shows that needs it.
NEEDED = {
    "raise": (handed_over([ZK] * 3), BrokerMode.ZOOKEEPER, {"isr": (1, 2), "leader": 1}),
    "elect": (later(DUAL, offset=60), BrokerMode.KRAFT, {"leader": -1}),
    "restart leader": (replace(later(DUAL, offset=60)), BrokerMode.KRAFT, {"isr": (1, 2), "leader": 1}),
}


def broker_step(verb: str) -> tuple[ClusterView, RollBroker]:
    view, target, row = NEEDED[verb]
    node, policy = SimCluster().spec.brokers[0], Policy(canary_bake=0.0)
    step = RollBackBroker(node, target, policy) if verb == "raise" else RollBroker(node, target, policy)
    partitions = tuple(replace(p, **row) if p.index == 0 else p for p in view.partitions or () if p.index in {0, 2})
    return replace(view, partitions=partitions), step


@pytest.mark.parametrize("verb", NEEDED)
def test_unread_partitions_get_no_recovery(verb: str) -> None:
    """Seen, they get it; a broker of whose partitions nothing is known has nothing that could be cured."""
    view, step = broker_step(verb)
    assert verb in {one.verb for one in decisions_over_time(view, step) if isinstance(one, Act)}
    unread, step = broker_step(verb)
    for decision in decisions_over_time(replace(unread, partitions=None), step):
        assert isinstance(decision, Wait), decision
        assert {reason.code for reason in decision.reasons} == {"G00"}


@pytest.mark.parametrize("shown", ["no partitions", "no lag"])
@pytest.mark.parametrize("verb", ["raise", "restart leader"])
def test_a_recovery_asks_once_more_and_spares_what_it_cannot_see(tmp_path: Path, verb: str, shown: str) -> None:
    """A broker whose log directory is offline reports no lag: the leader that keeps it out of the ISR is not the cause."""
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    view, step = broker_step(verb)
    lags = {} if shown == "no lag" else dict.fromkeys((("t", p) for p in range(6)), 0)
    tools = SimpleNamespace(**{**vars(context.tools), "wire": lambda _node: SimpleNamespace(log_offsets=lambda *_, **__: lags)})
    observer = SimpleNamespace(observe=lambda *_args: replace(view, partitions=None) if shown == "no partitions" else view)
    before = cluster.nodes[NodeRole.BROKER, 1].stops, cluster.controller_epoch
    step.act(replace(context, tools=tools, observer=observer), Act(Verb(verb), "it has lasted"))
    assert (cluster.nodes[NodeRole.BROKER, 1].stops, cluster.controller_epoch) == before


def test_controllers_whose_files_were_not_read_may_have_finalized() -> None:
    """R12 follows from the files of stopped controllers: unread files prove nothing either way."""
    first, view = equal(STOPPED), later(equal(STOPPED))
    assert isinstance(handover_decision(view, first), Act)
    unread = with_controller(view, 3001, files=NodeFiles())
    decision = handover_decision(unread, first)
    assert isinstance(decision, Wait), decision
    assert {reason.code for reason in decision.reasons} == {"G00"}
