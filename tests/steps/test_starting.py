"""A node that was just started is only asked for what is missing: whole observations would slow down its start."""

import itertools
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import Policy
from airflow_provider_kmigrate.core.migration.broker_restart import READINGS, When
from airflow_provider_kmigrate.exceptions import TimedOut
from airflow_provider_kmigrate.steps.run import run_step
from tests.steps.canary_broker import CANARY, ready, step
from tests.steps.sim_nodes import Health, well

TARGET = BrokerMode.MIGRATION
WHOLE = READINGS[When.STARTED].fields


class Asked:
    """What each observation of a cluster asked for, whether the broker answered it and was behind, and when it was over."""

    def __init__(self, cluster, takes: float, *, zookeeper: bool) -> None:
        self.cluster, self.takes, self.zookeeper = cluster, takes, zookeeper
        self.observations, self.times = [], []

    def observe(self, what, nodes=(), groups=()):
        self.cluster.clock.time += self.takes
        view = replace(self.cluster.observe(what, nodes, groups), took=self.takes)
        behind = bool(view.missing_isr(CANARY))
        self.observations.append((what, view.brokers[CANARY].mode, behind))
        self.times.append(self.cluster.clock.time)
        return view if self.zookeeper or not behind else replace(view, zk=None)


def rolled(tmp_path, unresponsive: int | None, behind: int = 0, takes: float = 0.0, *, zookeeper: bool = True) -> Asked:
    """A roll of one broker that does not respond for so many observations after its restart (None: forever), then is behind for so many. They
    take so many seconds, and do not see ZooKeeper while it is behind.
    """
    cluster = ready(tmp_path, TARGET)
    cluster.spec = replace(cluster.spec, policy=Policy(canary_bake=0.0, start_timeout=60.0))
    begins: list[int] = []

    def starting(broker: int, mode: BrokerMode, observation: int) -> Health:
        if (broker, mode) != (CANARY, TARGET):
            return well(broker, mode, observation)
        begins.append(observation)
        seen = observation - begins[0]
        answers = unresponsive is not None and seen >= unresponsive
        return Health(0.005 if answers else None, in_sync=unresponsive is not None and seen >= unresponsive + behind)

    cluster.health = starting
    asked = Asked(cluster, takes, zookeeper=zookeeper)
    try:
        run_step(step(cluster, TARGET), replace(cluster.context(tmp_path), observer=asked))
    finally:
        asked.observations = [one for one in asked.observations if one[1] is not BrokerMode.ZOOKEEPER]  # since its restart
        asked.times = asked.times[-len(asked.observations) :]
    return asked


def test_everything_is_observed_now_and_then_while_it_starts(tmp_path):
    observations = rolled(tmp_path, unresponsive=40).observations
    unresponsive = [what for what, mode, _ in observations if mode is None]
    whole = [what for what in unresponsive if what & WHOLE == WHOLE]
    assert len(unresponsive) > 4 * len(whole) > 0
    assert all(not what & (Fields.PARTITIONS | Fields.ZOOKEEPER) for what in unresponsive if what not in whole)
    assert observations[-1][0] & WHOLE == WHOLE, "nothing is concluded from a narrow observation"


def test_one_that_answers_is_asked_for_its_partitions_until_it_is_in_their_isrs_which_counts_as_one_observation(tmp_path):
    answered = [
        (what, behind) for what, mode, behind in rolled(tmp_path, unresponsive=10, behind=30).observations if mode is TARGET
    ]
    behind = [what for what, behind in answered if behind]
    whole = [what for what in behind if what & WHOLE == WHOLE]
    assert len(behind) > 4 * len(whole) > 0
    assert all(not what & (Fields.ZOOKEEPER | Fields.FILES) for what in behind if what not in whole)
    assert Policy().stable_samples == 3
    assert [what & WHOLE == WHOLE for what, behind in answered[1:] if not behind] == [
        False,
        True,
        True,
    ]


def test_the_wait_for_the_isrs_counts_for_nothing_if_zookeeper_was_not_read_before_it(tmp_path):
    observations = rolled(tmp_path, unresponsive=10, behind=30, zookeeper=False).observations
    last = max(number for number, (_, _, behind) in enumerate(observations) if behind)
    assert [what & WHOLE == WHOLE for what, _, _ in observations[last + 1 :]] == [
        False,
        True,
        True,
        True,
    ]


def test_slow_observations_do_not_delay_the_whole_one(tmp_path):
    asked = rolled(tmp_path, unresponsive=16, takes=1.5)
    whole = [at for at, (what, _, _) in zip(asked.times, asked.observations, strict=True) if what & WHOLE == WHOLE]
    apart = [after - before for before, after in itertools.pairwise(whole)]
    assert len(apart) > 3
    assert max(apart) < 0.2 + 2.0 + 1.6 + 0.4, "the pause, two seconds and the whole observation itself"


def test_one_that_never_answers_is_given_up_as_ever(tmp_path):
    with pytest.raises(TimedOut, match="R01"):
        rolled(tmp_path, unresponsive=None)
