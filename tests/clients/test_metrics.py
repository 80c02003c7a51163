"""Gauges over HTTP: from a real server on this machine, also one that answers with anything else."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from airflow_provider_kmigrate.clients.metrics import LARGEST, fetch_gauges
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.monitoring.witness import KafkaGauges
from tests.clients.fake_exporter import BODY, Answer, Exporter, answer, serving


def endless(handler: BaseHTTPRequestHandler) -> None:
    """More than may be read, without an end."""
    answer(BODY)(handler)
    try:
        while True:
            handler.wfile.write(b"#" * 65_536)
    except OSError:
        return


def unresponsive(handler: BaseHTTPRequestHandler) -> None:
    """Nothing, until the test is over."""
    assert isinstance(handler.server, Exporter)
    handler.server.done.wait()


def trickling(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then: each arrives in time, and the answer never ends."""
    assert isinstance(handler.server, Exporter)
    answer(BODY)(handler)
    try:
        while not handler.server.done.wait(0.02):
            handler.wfile.write(b"#")
    except OSError:
        return


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with serving() as server:
        yield server


def nodes(*ids: int) -> list[NodeSpec]:
    return [NodeSpec(node, NodeRole.CONTROLLER, "127.0.0.1", 9093, HostSpec("agent")) for node in ids]


def test_each_node_is_read_at_its_own_address(exporter: Exporter) -> None:
    exporter.answers["/3001"] = answer(b'{"request": {"mbean": "name=ZkMigrationState"}, "value": {"Value": 2}, "status": 200}')
    assert fetch_gauges(exporter.address, nodes(3000, 3001)) == {3000: KafkaGauges(1, 0), 3001: KafkaGauges(2)}


@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        (endless, f"more than {LARGEST} bytes"),
        (unresponsive, "no answer within 0.3 s"),
        (trickling, "no answer within 0.3 s"),
        (answer(b"<html>sign in</html>"), "neither ZkMigrationState"),
        (answer(b"\xff\xfe"), "UnicodeDecodeError"),
        (answer(BODY, 500), "it answered 500"),
        (answer(b"", 302, Location="/3000"), "it answered 302"),
        (answer(gzip.compress(BODY), Content_Encoding="gzip"), "UnicodeDecodeError"),
        (answer(b"zkmigrationstate \x1b[2J"), r"could not convert string to float: '\x1b"),
        (answer(b"zkmigrationstate " + b"x" * 5000), "ValueError: could not convert"),
        (lambda handler: handler.wfile.write(b"garbage\r\n\r\n"), "RemoteProtocolError"),
        (lambda handler: None, "RemoteProtocolError"),
    ],
    ids=[
        "endless",
        "unresponsive",
        "trickling",
        "page",
        "bytes",
        "error",
        "elsewhere",
        "compressed",
        "escapes",
        "long",
        "no HTTP",
        "nothing",
    ],
)
def test_no_answer_does_more_than_not_to_be_read(exporter: Exporter, hostile: Answer, why: str) -> None:
    exporter.answers["/3001"] = hostile
    within = 0.3 if "within" in why else 10.0
    found = fetch_gauges(exporter.address, nodes(3000, 3001), within)
    assert found[3000] == KafkaGauges(1, 0)
    assert why in found[3001].unread
    assert len(found[3001].unread) <= 300
    assert found[3001].unread.isprintable()


@pytest.mark.parametrize(
    ("address", "why"), [("http://{host}:1/{id}", "ConnectError"), ("http://{host}:99999999/{id}", "ExceptionGroup")]
)
def test_no_listener_at_the_address_and_no_address_are_not_read(address: str, why: str) -> None:
    (found,) = fetch_gauges(address, nodes(3000)).values()
    assert why in found.unread
