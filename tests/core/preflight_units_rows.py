"""Units that end more than their node, and what preflight finds of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from airflow_provider_kmigrate.core.cluster_state.model import Process, ServiceUnit
from airflow_provider_kmigrate.core.node_files.service_unit import systemd_seconds
from tests.core.preflight_around import Row
from tests.core.preflight_views import Case, healthy
from tests.kit.units import STOP_SCRIPT

STOPS_ALL = {"Id": "kafka.service", "ExecStop": STOP_SCRIPT}


def with_units(units: Mapping[str, ServiceUnit], *, beside: bool = False) -> Case:
    """The healthy cluster with these units by the node's name; `beside`: controller 3000 is on the machine of broker 0."""
    view, facts = healthy()

    def process_of(name: str, process: Process) -> Process:
        unit = units.get(name)
        after = None if unit is None else systemd_seconds(unit.shown.get("TimeoutStopUSec", "infinity"))
        return replace(process, unit=unit, killed_after=inf if unit is None else after)

    brokers = {n: replace(b, process=process_of(f"broker {n}", b.process)) for n, b in view.brokers.items()}
    controllers = {n: replace(c, process=process_of(f"controller {n}", c.process)) for n, c in view.controllers.items()}
    nodes = facts.spec.controllers
    if beside:
        other = replace(nodes[0].hosts, properties="/etc/kafka/controller.properties")
        nodes = (replace(nodes[0], host="node0", hosts=other, port=9093, log_dir="/kraft"), *nodes[1:])
    return replace(view, brokers=brokers, controllers=controllers), replace(facts, spec=replace(facts.spec, controllers=nodes))


ROWS: list[Row] = [
    ("a stop that ends a neighbour", lambda *_: with_units({"broker 0": ServiceUnit(STOPS_ALL)}, beside=True), ["B19"]),
    ("a unit that needs ZooKeeper", lambda *_: with_units({"broker 0": ServiceUnit({"BindsTo": "zookeeper.service"})}), ["W23"]),
]
