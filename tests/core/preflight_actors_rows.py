"""Changes by other actors, and what preflight finds of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from airflow_provider_kmigrate.core.cluster_state.model import BrokerRegistration, ClusterView, NodeFiles
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts
from tests.core.preflight_around import RATE, STRANGE_DIR, TWO_FORMS, Row, environment, everywhere, named, remote, topics, tree
from tests.core.preflight_views import NOW, Case, Change, both, broker_1, config, controller_files, controller_ids, zk

CHANGED = tree(changed=(("settings of users/alice", NOW - 60),))


def clocks(ahead: Mapping[str, float | None]) -> Change:
    """Nodes on machines of their own, whose agents say so many seconds; 0 for the others, None: its agent does not say."""

    def change(view: ClusterView, facts: PreflightFacts) -> Case:
        brokers = {
            n: replace(b, process=replace(b.process, clock_ahead=ahead.get(f"broker {n}", 0.0))) for n, b in view.brokers.items()
        }
        nodes = {
            n: replace(c, process=replace(c.process, clock_ahead=ahead.get(f"controller {n}", 0.0)))
            for n, c in view.controllers.items()
        }
        found = replace(facts, environment=replace(facts.environment, one_machine=False))
        return replace(view, brokers=brokers, controllers=nodes), found

    return change


def own(*acts: tuple[float, float]) -> Change:
    """kmigrate acted between these times."""
    return lambda view, facts: (view, replace(facts, own_acts=acts))


ROWS: list[Row] = [
    ("tree not read", environment(tree=None), ["U05"]),
    ("no features", tree(has_feature=False), ["B1b"]),
    ("controller ids in the range of given ones", both(controller_ids(1001, 1002, 1003), tree(generated_ids=2)), ["B2b"]),
    ("reassignment by the API", environment(moving=("orders-0",)), ["S04"]),
    ("reassignments not reported", environment(moving=None), ["S04"]),
    ("reassignment in ZooKeeper alone", both(zk(reassigning=True), environment(moving=None)), ["S04"]),
    ("throttle in force", both(topics(leader_replication_throttled_replicas="*"), tree(broker_settings={"1": RATE})), ["B14"]),
    ("throttle of a topic", topics(follower_replication_throttled_replicas="0:1"), ["B14"]),
    ("rate of a broker", tree(broker_settings={"<default>": RATE}), ["B14"]),
    ("dynamic setting", tree(broker_settings={"<default>": ("log.cleaner.threads",)}), ["W13"]),
    ("unclean elections", topics(unclean_leader_election_enable="true"), ["W13"]),
    ("policy", everywhere(alter_config_policy_class_name="com.example.Policy"), ["B8a", "B8a"]),
    ("Cruise Control", named("__CruiseControlMetrics"), ["W9"]),
    ("Confluent Server's own balancer", everywhere(confluent_balancer_enable="true"), ["W24", "W9"]),
    ("a balancer that is off", everywhere(confluent_balancer_enable="false"), ["W24"]),
    ("CMAK", tree(cmak=True), ["W9"]),
    ("CMAK not reported", tree(cmak=None), ["W9"]),
    ("settings changed now", tree(changed=(("settings of topics/orders", NOW - 60),)), ["W9"]),
    ("settings changed long ago", tree(changed=(("settings of topics/orders", NOW - 3600),)), []),
    ("settings written by our own failover", both(CHANGED, own((NOW - 90, NOW - 30))), []),
    ("settings changed beside our own acts", both(CHANGED, own((NOW - 50, NOW - 30), (NOW - 900, NOW - 61))), ["W9"]),
    ("old groups", zk(live_groups=("legacy",)), ["G21"]),
    ("Storm spouts", tree(storm_spouts=("/kafkastorm/orders",)), ["G21"]),
    ("Storm spouts not reported", tree(storm_spouts=None), ["G21"]),
    ("clock of a broker", tree(registrations={i: BrokerRegistration(NOW - 500 + 60 * (i == 1), NOW - 500) for i in range(3)}), ["W8"]),
    ("clock of ZooKeeper", tree(latest=NOW + 30), ["W8"]),
    ("broker's time not reported", tree(registrations={i: BrokerRegistration(NOW, NOW) for i in range(2)}), ["W8"]),
    ("nodes on other machines", environment(one_machine=False), ["W8"]),
    ("a broker's machine ahead", clocks({"broker 1": 600.0}), ["W8"]),
    ("a controller's machine behind, not started yet", clocks({"controller 3001": -600.0}), ["W8"]),
    ("every machine's clock is known", clocks({}), []),
    ("clocks within the limit", clocks({"broker 1": 5.0, "controller 3000": -5.0}), []),
    ("one agent does not say", clocks({"controller 3002": None}), ["W8"]),
    ("our patience too short", remote(400.0, stop_timeout=60.0), ["W7"]),
    ("nodes killed too early", remote(90.0), ["W7"]),
    ("nodes killed exactly when Kafka gives up", remote(300.0), ["W7"]),
    ("when nodes are killed not reported", remote(), ["W7"]),
    ("nodes killed late enough", remote(600.0), []),
    ("nodes never killed", remote(inf), []),
    ("meta.properties of version 1", broker_1(files=TWO_FORMS), ["W10"]),
    ("directory of another broker", broker_1(files=STRANGE_DIR), ["M01"]),
    ("directory of a broker given to a controller", controller_files(NodeFiles(meta={"/d": {"broker.id": "1"}}, has_metadata_log=False)), ["M01"]),
    ("directories not read", broker_1(files=NodeFiles(config(1))), ["U05"]),
]  # fmt: skip
