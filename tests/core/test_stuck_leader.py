"""A leader that takes nobody back: told from one that is merely slow, and restarted only where that costs nothing."""

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.gates import GateState
from airflow_provider_kmigrate.core.migration.recovery import may_restart, stuck_leader
from tests.core.views import MIG, ZK, cluster, with_broker, with_zk


def seen(leaders_without, follower=0, modes=(ZK, ZK, ZK)):
    """A cluster in which `follower` is out of the ISR wherever one of these leads."""
    view = cluster(list(modes))
    rows = []
    for p in view.partitions:
        leader = p.leader if p.leader != follower else p.replicas[1]
        isr = tuple(b for b in p.replicas if b != follower or leader not in leaders_without)
        rows.append(replace(p, leader=leader, isr=isr))
    view = replace(view, partitions=tuple(rows))
    for node in view.brokers:
        view = with_broker(view, node, controller_id=0)
    return view


def test_one_leader_of_all_that_lack_the_follower():
    assert stuck_leader(seen({2}), 0) == 2


@pytest.mark.parametrize("leaders", [set(), {1, 2}])
def test_none_or_several_leaders_are_a_follower_that_catches_up(leaders):
    assert stuck_leader(seen(leaders), 0) is None


def test_a_leader_that_took_it_back_for_one_partition_works():
    view = seen({2})
    healed, *rest = [p for p in view.partitions if p.leader == 2]
    others = [p for p in view.partitions if p.leader != 2]
    view = replace(view, partitions=(replace(healed, isr=healed.replicas), *rest, *others))
    assert stuck_leader(view, 0) is None


def test_it_may_restart_where_others_are_in_sync():
    assert may_restart(seen({2}), 0, 2).met


def codes(gate):
    assert gate.state is GateState.NOT_YET
    return {reason.code for reason in gate.reasons}


def alone(min_insync):
    """Broker 2 is the only one left in the ISRs of what it leads."""
    view = seen({2})
    rows = tuple(replace(p, isr=(2,)) if p.leader == 2 else p for p in view.partitions)
    return replace(view, partitions=rows, min_insync=min_insync)


@pytest.mark.parametrize("min_insync", [{"t": 1}, {}, None])
def test_not_while_it_is_the_only_one_in_sync_and_may_still_be_written(min_insync):
    assert codes(may_restart(alone(min_insync), 0, 2)) == {"S02"}


def test_what_nobody_can_write_any_more_loses_nothing_by_its_leaders_restart():
    """Two brokers fell out at once, and the leader can take neither back: nothing else ends that."""
    assert may_restart(alone({"t": 2}), 0, 2).met
    assert "R01" in codes(may_restart(with_broker(alone({"t": 2}), 1, mode=None), 0, 2))


def test_not_while_another_broker_is_silent():
    assert "R01" in codes(may_restart(with_broker(seen({2}), 1, mode=None), 0, 2))


def test_not_while_it_does_not_name_the_controller():
    assert codes(may_restart(with_broker(seen({2}), 2, controller_id=1), 0, 2)) == {"G28"}
    assert codes(may_restart(with_zk(seen({2}), controller=None), 0, 2)) == {"G00"}


def test_in_migration_mode_the_controllers_must_answer():
    view = cluster([MIG, MIG, MIG], [True, True, True], offset=9)
    missing = tuple(replace(p, isr=tuple(b for b in p.isr if b != 0)) if p.leader == 2 else p for p in view.partitions)
    view = replace(view, partitions=missing)
    assert may_restart(view, 0, 2).met
    unresponsive = {node: replace(c, answers=False) for node, c in view.controllers.items()}
    assert codes(may_restart(replace(view, controllers=unresponsive), 0, 2)) == {"G28"}
    two = {node: replace(view.controllers[node], answers=node == 3000) for node in (3000, 3001)}
    assert codes(may_restart(replace(view, controllers=two), 0, 2)) == {"G28"}, "half of them are no majority"
    assert may_restart(replace(view, controllers={**view.controllers, 3002: unresponsive[3002]}), 0, 2).met


def test_what_else_is_amiss_is_counted_not_cut():
    """Eight names alone would read as all of them."""
    view = seen({2})
    amiss = tuple(replace(view.partitions[0], topic="u", index=n, replicas=(0, 1, 2), isr=(1, 2), leader=1) for n in range(20))
    gate = may_restart(replace(view, partitions=(*view.partitions, *amiss)), 0, 2)
    assert "and 12 more" in gate.reasons[0].text
