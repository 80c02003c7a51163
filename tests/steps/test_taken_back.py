"""The order of the first roll after its first broker was taken back alone: the controllers still count it as registered."""

from itertools import permutations

import pytest

from airflow_provider_kmigrate.core.migration.roll import next_to_roll, postponed
from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.core.phase import Phase, where
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps.brokers import RollBackCanary
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.steps.waits import Copied
from tests.steps.test_first_broker import BAKE, CANARY, ready, step
from tests.steps.test_migration import EVERYTHING, roll


def registered_but_plain(tmp_path, broker: int = CANARY):
    """The first broker of the first roll was taken back; the controllers count it as registered all the same."""
    cluster = ready(tmp_path, BrokerMode.MIGRATION)
    run_step(step(cluster, BrokerMode.MIGRATION, broker=broker), cluster.context(tmp_path), sync_for=4.0)
    run_step(RollBackCanary(cluster.spec.brokers[broker], BrokerMode.ZOOKEEPER, BAKE), cluster.context(tmp_path))
    assert cluster.registered == {broker}
    return cluster


def test_the_last_of_the_others_waits_for_a_broker_that_was_taken_back(tmp_path):
    cluster = registered_but_plain(tmp_path)
    context = cluster.context(tmp_path)
    run_step(step(cluster, BrokerMode.MIGRATION, broker=2), context)
    with pytest.raises(TimedOut, match="G08"):
        run_step(step(cluster, BrokerMode.MIGRATION, broker=0), context)
    assert cluster.disasters == []
    run_step(step(cluster, BrokerMode.MIGRATION), context)
    run_step(step(cluster, BrokerMode.MIGRATION, broker=0), context)
    assert cluster.kraft_owns
    assert cluster.disasters == []


@pytest.mark.parametrize("controller", range(3))
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_of_the_tasks_never_ends_in_waiting_for_one_another(tmp_path, controller, order):
    """The ZooKeeper controller may be another broker by the time of the next run, even the one that was taken back."""
    cluster = registered_but_plain(tmp_path)
    cluster.zookeeper_controller = controller
    context = cluster.context(tmp_path)
    for broker in order:
        if not postponed(cluster.observe(EVERYTHING), broker, order, BrokerMode.MIGRATION):
            run_step(step(cluster, BrokerMode.MIGRATION, broker=broker), context)
    while (broker := next_to_roll(cluster.observe(EVERYTHING), order, BrokerMode.MIGRATION)) is not None:
        run_step(step(cluster, BrokerMode.MIGRATION, broker=broker), context)
    assert cluster.kraft_owns
    assert cluster.disasters == []


def test_a_broker_that_somebody_else_stopped_is_still_left_alone(tmp_path):
    """In the second pass the note of the first one says nothing."""
    cluster = registered_but_plain(tmp_path)
    roll(cluster, cluster.context(tmp_path), BrokerMode.MIGRATION)
    run_step(Copied(), cluster.context(tmp_path))
    assert where(cluster.observe(EVERYTHING)).phase is Phase.DUAL_WRITE_ZOOKEEPER
    cluster.stop(cluster.spec.brokers[CANARY])
    with pytest.raises(TimedOut, match="R02"):
        run_step(step(cluster, BrokerMode.KRAFT), cluster.context(tmp_path))
