"""Which gate rests on one release's behaviour: what each release serves of what kmigrate asks, and what preflight makes of it."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import level_of, version_of
from airflow_provider_kmigrate.core.node_files.kafka_keys import kafka_rules
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.core.preflight.kafka_requests import (
    NEEDS,
    Listener,
    find_missing_requests,
    served_requests,
)
from airflow_provider_kmigrate.core.preflight.versions import judge_release, parse_version
from tests.core.preflight_around import release as running
from tests.core.preflight_views import healthy

RELEASES = kafka_rules().with_zookeeper
NO_SETTINGS = (
    "a controller does not serve DescribeConfigs, which kmigrate needs to compare what ZooKeeper and KRaft store of brokers' "
    "settings (KIP-226, KIP-919)"
)
#: Release -> what preflight says of a cluster that is otherwise in order: the severity, and what is named first.
FOUND = {
    "3.6.2": (Severity.BLOCK, f"brokers run Kafka 3.6.2: {NO_SETTINGS}"),
    "3.7.2": None,
    "3.8.1": None,
    "3.9.1": None,
    "3.9.2": None,
}


def test_the_data_is_of_every_release_that_has_zookeeper() -> None:
    assert tuple(served_requests()) == RELEASES
    assert set(FOUND) == set(RELEASES)


@pytest.mark.parametrize("name", RELEASES)
def test_preflight_says_of_each_release_what_its_nodes_do_not_serve(name: str) -> None:
    protocol = version_of(level_of(name) or 0) or ""
    found = [each for each in run_checks(*running(protocol, name)(*healthy())) if each.code == "B1b"]
    expected = FOUND[name]
    if expected is None:
        assert found == []
    else:
        (finding,) = found
        assert finding.severity is expected[0]
        assert finding.reason.text.startswith(expected[1])


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_blocked_exactly_if_it_does_not_serve_what_a_gate_needs(name: str) -> None:
    """None of these releases has a defect that blocks, so that what is missing decides alone."""
    release = parse_version(name)
    assert release is not None
    assert (judge_release(release) is Severity.BLOCK) is bool(find_missing_requests(release.line))


def test_a_line_without_data_lacks_nothing_by_them() -> None:
    """Lines beside these are blocked for what they are: `test_bug_matrix`."""
    assert find_missing_requests((3, 5)) == find_missing_requests((3, 10)) == find_missing_requests((4, 0)) == ()


def test_each_need_is_said_once_and_of_a_request_that_a_release_has() -> None:
    assert max(Counter(need.request for need in NEEDS).values()) == 1
    newest = served_requests()[RELEASES[-1]]
    for need in NEEDS:
        assert set(need.listeners) <= newest[need.request].listeners
        assert newest[need.request].lowest <= need.lowest <= newest[need.request].highest
        assert need.source.startswith("KIP-")
        assert not need.purpose.endswith(".")


@pytest.mark.parametrize("name", RELEASES)
def test_a_broker_that_serves_describe_quorum_is_in_kraft_mode(name: str) -> None:
    """`clients.wire.ApiVersions.mode` reads a broker's mode from that alone."""
    served = served_requests()[name]["DescribeQuorum"]
    assert served.listeners == {Listener.BROKER, Listener.CONTROLLER}
    assert served.key == 55
