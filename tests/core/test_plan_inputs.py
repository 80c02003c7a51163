"""Each key of a cluster file is an input of every plan, and the same file has the same fingerprint in every process."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import yaml

from airflow_provider_kmigrate.core.migration.plan_document import hash_values
from airflow_provider_kmigrate.core.migration.plan_facts import hash_own_inputs
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec.load import loads

SCHEMA = json.loads(files("airflow_provider_kmigrate").joinpath("cluster.schema.json").read_text())
#: Every key of the schema once. Of keys that exclude each other (`ssh_conn_id` and `connect`), some stand in another broker, group or job.
FULL = """\
name: prod
cluster_id: q1Sh-9_ISia_zwGINzRvyQ
zookeeper: {conn_id: zk, verify_hostname: false}
kafka: {conn_id: kafka, verify_hostname: false}
kafka_release: 3.9.1
hosts: {driver: agent, properties: /etc/kafka/server.properties, ssh_conn_id: ssh, stop_timeout: 5m}
brokers:
- {id: 0, host: kafka0, port: 9092, rack: a, driver: agent, properties: /etc/kafka/own.properties, ssh_conn_id: ssh2, stop_timeout: 6m, log_dir: /var/lib/meta}
- {id: 1, host: kafka1, port: 9092, connect: [ssh, "{host}"], conn_id: nodes}
controllers:
- {id: 3000, host: ctl0, port: 9093, rack: a, log_dir: /var/lib/kraft, driver: agent, properties: /etc/kafka/own.properties, ssh_conn_id: ssh2, stop_timeout: 6m}
- {id: 3001, host: ctl1, port: 9093, log_dir: /var/lib/kraft, connect: [ssh, "{host}"], conn_id: nodes}
quorum: {conn_id: ctl, verify_hostname: false, listener: CONTROLLER, security_protocol: SASL_SSL, properties: {num.network.threads: "3"}}
stage_properties:
  broker_migration: {num.io.threads: "8"}
  broker_kraft: {num.io.threads: "8"}
  controller_migration: {num.io.threads: "8"}
  controller_final: {num.io.threads: "8"}
policy: {min_soak: 1d, max_hybrid: 4h, canary_bake: 10m, stable_samples: 3, sample_interval: 1, fast_failover: false, elect_batch: 10, start_timeout: 10m, copy_timeout: 10m}
groups:
- name: billing
  way: migrating
  switch: [restart, "{instance}", "{kind}"]
  instances: [{name: app0, host: app0}, {name: app1, switch: [own, "{instance}", "{kind}"]}]
  wave: 2
  window: 01:00-05:00
  bake: 10m
  commit_within: 150s
  switch_timeout: 5m
  conn_id: apps
- name: orders
  webhook: deployer
  instances: [{name: app2, host: app2}, {name: app3, webhook: deployer2}]
  webhook_tls: false
- name: ledger
  way: cutover
  units: {zookeeper: app-zk.service, kafka: app-kafka.service}
  instances: [{name: app4, host: app4}, {name: app5, host: app5, units: {zookeeper: a.service, kafka: b.service}}]
  quiet: 5s
  side_by_side: false
- {name: hands, way: cutover, by_hand: true, instances: [{name: app6}]}
- name: views
  way: migrating
  units: {zookeeper: zk.service, migrating: both.service, kafka: kafka.service}
  instances: [{name: app7, host: app7}, {name: app8, host: app8, units: {zookeeper: c.service, migrating: d.service, kafka: e.service}}]
later_groups: [nightly]
groups_schedule: "@daily"
group_progress: {exclude: [loader], max_lag: {billing: 1000}, commit_within: 150s}
spark_jobs:
- {name: lake, checkpoint: /c, hold_folder: /h, topics: [orders], options: {failOnDataLoss: "true"}, hold: risky, hold_timeout: 15m, idempotent_sink: false, conn_id: lake}
- {name: flink, checkpoint: /d, hold: always, hold_command: [pause], release_command: [resume], command_conn_id: jobs, group: readers, quiet: 1m, topics: [orders]}
audit:
  conn_id: spark
  result: /var/lib/audit
  events: [/var/lib/events]
  ledgers: [/var/lib/ledger]
  events_topic: events
  topics: [orders]
  resetting_groups: [nightly]
  sample_fraction: 0.5
  jars: [/opt/a.jar]
  level: probe
  allow: [redelivered]
  environment: /opt/spark
  schedule: "@daily"
  baseline_time: "2026-01-31T12:00Z"
  retries: 2
  retry_delay: 10m
  probe: true
  session: true
  offsets_history: true
  canary: {interval: 1s, window: 100, margin: 2.0, settle: 10s}
  max_lag: 5m
  spark:
    properties: {spark.ui.enabled: "false"}
    driver_memory: 3g
    executor_memory: 3g
    deploy_mode: client
    archives: [/opt/e.tar.gz]
    image: kafka:1
    kafka_options: {kafka.client.id: a}
approvers: {users: [ann, bob], required: 1, reason: false, expires: 1d, not_requester: false, signing_conn_id: sign}
notify: [{notifier: a.B, arguments: {to: ops}}]
runbook_url: https://wiki/runbook
controller_metrics: "http://{host}:7071/metrics"
rehearsal: false
windows: [01:00-05:00]
stop_after: [first_roll]
deadlines: {second_roll: 4h}
"""

#: Keys that another key above excludes, with what they need.
MORE: tuple[tuple[tuple[str | int, ...], Any], ...] = (
    (
        ("hosts",),
        {"driver": "agent", "properties": "/etc/kafka/server.properties", "connect": ["ssh", "{host}"], "conn_id": "nodes"},
    ),
    (("audit",), {"conn_id": "spark", "result": "/r", "events": ["/e"], "environment": "/s", "exclude_topics": ["logs"]}),
)
Path = tuple[str | int, ...]


def list_keys(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys that the schema knows, without places in lists and the names of free mappings."""
    node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    yield path
    for inner in (*node.get("anyOf", ()), *([node["items"]] if "items" in node else [])):
        yield from list_keys(inner, path)
    for name, inner in node.get("properties", {}).items():
        yield from list_keys(inner, (*path, name))


def list_leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items:
        yield path, value
    for name, inner in items:
        yield from list_leaves(inner, (*path, name))


def put(document: Any, path: Path, value: Any) -> Any:
    """The document with another value in one place."""
    changed = copy.deepcopy(document)
    place = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return changed


def list_others(value: Any) -> Iterator[Any]:
    """Values of the same kind, of which a key takes at least one."""
    if isinstance(value, bool):
        return iter([not value])
    if isinstance(value, int | float):
        return iter([value + 1, value + 7, value / 2])
    return iter([*(word for pattern, word in WORDS.items() if re.fullmatch(pattern, value)), f"{value}x", f"x{value}"])


#: Texts that not every text may replace -> one that may.
WORDS = {
    r"\d+[smhd]": "7m",
    r"[\d:]{5}-[\d:]{5}": "02:00-03:00",
    r"\d+g": "4g",
    r"@\w+": "@hourly",
    r"3\.9\.1": "3.9.2",
    r"20\d\d-.*": "2026-01-30T12:00Z",
    r".{22}": "q1Sh-9_ISia_zwGINzRvyA",
    r".*\.service": "other.service",
    "SASL_SSL": "SSL",
    "agent": "gone",
    "migrating": "cutover",
    "cutover": "migrating",
    "risky|always": "never",
    "probe": "consumers",
    "client": "cluster",
    "redelivered": "lost",
    "first_roll": "soak",
}


DOCUMENT = yaml.safe_load(FULL)
DOCUMENTS = [DOCUMENT, *(put(DOCUMENT, path, value) for path, value in MORE)]
#: Each key once: where it stands first.
CHANGES = {
    ".".join(part for part in path if isinstance(part, str)): (number, path)
    for number, document in reversed([*enumerate(DOCUMENTS)])
    for path, _ in reversed([*list_leaves(document)])
}


def hash_file(document: Any) -> str:
    return hash_own_inputs(loads(yaml.safe_dump(document)), "1.0")["the cluster file"]


HASHES = [hash_file(document) for document in DOCUMENTS]


def test_the_file_has_every_key_of_the_schema() -> None:
    written = {
        tuple(part for part in path[:end] if isinstance(part, str))
        for _, path in CHANGES.values()
        for end in range(len(path) + 1)
    }
    assert {".".join(key) for key in {*list_keys(SCHEMA)} - written} == set()


#: Their other value needs other keys, too. Nodes have a `driver` of their own, and groups are by hand or have another way.
NEEDS_MORE = {"hosts.driver", "groups.by_hand"}


@pytest.mark.parametrize("name", sorted(CHANGES.keys() - NEEDS_MORE))
def test_each_key_is_an_input_of_the_plan(name: str) -> None:
    number, path = CHANGES[name]
    document = DOCUMENTS[number]
    value: Any = document
    for part in path:
        value = value[part]
    for other in list_others(value):
        try:
            changed = hash_file(put(document, path, other))
        except SpecError:
            continue
        assert changed != HASHES[number], other
        return
    pytest.fail(f"no other value of {name} is taken")


VALUES = """[
    {"zookeeper", "kafka", "quorum"},
    frozenset({"zookeeper", "kafka", "quorum", "a", "b"}),
    {"z": {3: 1, "a": 2}, "b": None},
    [{"deep": {"x", "y", "z"}}],
    {date(2026, 1, 1): date(2026, 1, 2)},
]"""


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    """A set has another order in each process, and a notifier's arguments are whatever YAML holds."""
    program = f"from datetime import date; from {hash_values.__module__} import hash_values\n"
    program += f"print(*(hash_values(dict(value=value)) for value in {VALUES}))"
    first, *others = (
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": str(seed)}, check=True, capture_output=True
        ).stdout.split()
        for seed in range(4)
    )
    assert len({*first}) == 5
    assert others == [first] * 3
