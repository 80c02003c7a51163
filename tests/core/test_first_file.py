"""The first cluster file: what was read is in it, what nobody read is a mark, and a file with a mark is no cluster file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from airflow_provider_kmigrate.core.preflight.first_file import (
    MARK,
    FirstBroker,
    FirstFacts,
    choose_endpoint,
    find_marks,
    parse_registration,
    render_first_file,
)
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec import loads

ID = "q1Sh-9_ISia_zwGINzRvyQ"
FILE = "/etc/kafka/server.properties"
BROKERS = tuple(
    FirstBroker(number, f"kafka{number}", 9092, rack, "3.9", ("/var/lib/kafka",), FILE) for number, rack in enumerate("abc")
)
FACTS = FirstFacts("prod", ID, "prod_zk", "prod_kafka", BROKERS, "prod_ssh")


def fill_in(text: str) -> str:
    """The file as an operator completes it."""
    for number in range(3000, 3003):
        text = text.replace(f"{MARK}_host_of_controller_{number}", f"ctl{number}")
        text = text.replace(f"/{MARK}_log_dir_of_controller_{number}", "/var/lib/kraft")
    return text.replace(f"{MARK}_release_of_the_line_3.9", "3.9.2")


def test_what_was_read_is_in_the_file_and_loads_once_the_marks_are_replaced() -> None:
    spec = loads(fill_in(render_first_file(FACTS)))
    assert (spec.name, spec.cluster_id, spec.kafka_release) == ("prod", ID, "3.9.2")
    assert [(node.id, node.host, node.port, node.rack, node.hosts.properties) for node in spec.brokers] == [
        (number, f"kafka{number}", 9092, rack, FILE) for number, rack in enumerate("abc")
    ]
    assert [node.id for node in spec.controllers] == [3000, 3001, 3002]
    assert "# its log.dirs: /var/lib/kafka" in render_first_file(FACTS)


def test_each_mark_is_named_with_its_place_and_what_belongs_there() -> None:
    with pytest.raises(SpecError) as refused:
        loads(render_first_file(FACTS), "prod.yaml")
    text = str(refused.value)
    assert text.count(f"the mark {MARK}") == 7
    for place in ("controllers[0].host", "controllers[2].log_dir", "kafka_release"):
        assert place in text
    assert "write the full release of the brokers' software, such as 3.9.2 in its place" in text


@pytest.mark.parametrize(
    ("change", "marks"),
    [
        ({"ssh_conn_id": ""}, {("hosts", "ssh_conn_id")}),
        ({"brokers": tuple(replace(broker, properties=None) for broker in BROKERS)}, {("hosts", "properties")}),
        ({"brokers": (replace(BROKERS[0], port=None), *BROKERS[1:])}, {("brokers", 0, "port")}),
        ({"brokers": (replace(BROKERS[0], host="", port=None), *BROKERS[1:])}, {("brokers", 0, "host"), ("brokers", 0, "port")}),
        ({"brokers": (replace(BROKERS[0], release="3.8"), *BROKERS[1:])}, set()),
    ],
)
def test_what_is_not_known_is_a_mark_and_never_a_guess(change: dict[str, Any], marks: set[tuple[str | int, ...]]) -> None:
    text = render_first_file(replace(FACTS, **change))
    always = {("kafka_release",), *(("controllers", number, key) for number in range(3) for key in ("host", "log_dir"))}
    assert set(find_marks(yaml.safe_load(text))) == always | marks
    with pytest.raises(SpecError):
        loads(text)


@pytest.mark.parametrize(
    "hostile", ["a\nname: evil", "x: y", "- {id: 1}", "{evil}", "true", "12", "1_0", "#x", "&a", "'", '"', "\u2028"]
)
def test_a_name_of_others_is_one_value_and_forges_no_key(hostile: str) -> None:
    brokers = (replace(BROKERS[0], rack=hostile, doubts=(f"{hostile} failed",), log_dirs=(hostile,)), *BROKERS[1:])
    data = yaml.safe_load(render_first_file(replace(FACTS, brokers=brokers)))
    assert data["brokers"][0]["rack"] == hostile
    assert data.keys() == {"name", "cluster_id", "zookeeper", "kafka", "hosts", "brokers", "controllers", "kafka_release"}


def test_nodes_with_the_same_mark_are_no_problem_of_their_own() -> None:
    brokers = tuple(replace(broker, host="kafka", port=9092 + broker.id, properties=None) for broker in BROKERS)
    with pytest.raises(SpecError) as refused:
        loads(render_first_file(replace(FACTS, brokers=brokers)))
    assert str(refused.value).count("Fix: ") == 8, "one for each mark"


def test_controllers_get_ids_that_no_broker_has() -> None:
    brokers = (replace(BROKERS[0], id=3001), replace(BROKERS[1], id=4002))
    data = yaml.safe_load(render_first_file(replace(FACTS, brokers=brokers)))
    assert [controller["id"] for controller in data["controllers"]] == [5000, 5001, 5002]


@pytest.mark.parametrize(
    ("endpoints", "ports", "chosen"),
    [
        (["PLAINTEXT://kafka0:9092"], [], ("kafka0", 9092)),
        (["INTERNAL://in0:9091", "CLIENT://out0:9092"], [9092], ("out0", 9092)),
        (["INTERNAL://in0:9091", "CLIENT://out0:9092"], [1234], ("in0", None)),
        (["PLAINTEXT://[::1]:9092"], [9092], ("::1", 9092)),
        ([], [9092], ("", None)),
        (["PLAINTEXT://kafka0"], [9092], ("", None)),
        ("PLAINTEXT://kafka0:9092", [9092], ("", None)),
    ],
)
def test_the_listener_is_the_one_that_the_kafka_connection_uses(
    endpoints: object, ports: list[int], chosen: tuple[str, int | None]
) -> None:
    assert choose_endpoint({"endpoints": endpoints}, ports) == chosen


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"\xff", b"7"])
def test_a_znode_that_is_no_object_has_nothing(data: bytes) -> None:
    assert parse_registration(data) == {}
