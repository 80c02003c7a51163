"""Every request that the wire client sends has its row in `core.preflight.kafka_requests`, for the kinds of nodes that are asked."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, NoReturn

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from airflow_provider_kmigrate.clients.brokers_admin import Admin
from airflow_provider_kmigrate.clients.settings import KafkaSettings, ZooKeeperSettings
from airflow_provider_kmigrate.clients.tools import Tools
from airflow_provider_kmigrate.clients.wire import ApiVersions, NodeMetadata, Wire
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Certificate
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.preflight.kafka_requests import NEEDS, Listener, RequestNeed, served_requests
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.observe import Observer
from airflow_provider_kmigrate.observe.stored import StoredReads
from tests.clients.fake_cluster import BROKERS, CLUSTER, CONTROLLERS, EVERYTHING, QUICK, SPEC
from tests.clients.no_znodes import NoZnodes
from tests.trees import PACKAGE, ROOT
from tests.waiting import refusing_port

RELEASES = served_requests()
NEWEST = list(RELEASES.values())[-1]
NEEDS_BY_KEY = {NEWEST[need.request].key: need for need in NEEDS}
#: Where nodes are asked: files below the package, with how many times. `observe` is run below; the other places ask brokers, but one.
PLACES = {
    "clients/brokers_admin.py": 1,  # the brokers' controller, or any broker in KRaft mode
    "clients/tools.py": 2,  # a client for whoever asks; groups, at brokers
    "clients/wire_groups.py": 1,
    "commands/first_reading.py": 2,
    "hooks/connections.py": 1,  # a controller: the Test button asks ApiVersions and DescribeCluster
    "observe/observer.py": 4,
    "observe/reads.py": 8,
    "observe/stored.py": 8,
    "steps/brokers.py": 2,
    "steps/offsets_repair.py": 1,
    "steps/prepare.py": 1,
}
_ACTS = {"ask", "negotiate_version"}


class Site(NamedTuple):
    """A place that sends a request. `highest`: None if it is no number there."""

    place: str
    key: int
    lowest: int
    highest: int | None


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        yield str(path.relative_to(ROOT / PACKAGE)), ast.parse(path.read_text())


def key_of(place: str, name: str) -> int:
    module = importlib.import_module(f"{PACKAGE}.{place.removesuffix('.py').replace('/', '.')}")
    return int(getattr(module, name).API_KEY)


def number(node: ast.expr | None) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def sites() -> Iterator[Site]:
    for place, tree in parsed():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            names = [
                part.id for part in (call.func, *call.args[:1]) if isinstance(part, ast.Name) and part.id.endswith("Request")
            ]
            if isinstance(call.func, ast.Attribute) and call.func.attr in _ACTS and names:
                lowest = number(call.args[1])
                assert lowest is not None, f"{place}:{call.lineno}: write the lowest version as a number"
                yield Site(f"{place}:{call.lineno}", key_of(place, names[0]), lowest, number(call.args[2]))
            elif isinstance(call.func, ast.Name) and names and (version := version_of_call(call)) is not None:
                yield Site(f"{place}:{call.lineno}", key_of(place, names[0]), version, version)


def version_of_call(call: ast.Call) -> int | None:
    return next((number(word.value) for word in call.keywords if word.arg == "version"), None)


SITES = tuple(sites())


def test_every_request_that_the_package_names_has_a_row() -> None:
    """A gate that asks something new fails here until its row says of which nodes, and which release must serve it."""
    imported = {
        (place, alias.name)
        for place, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("kafka.protocol", f"{PACKAGE}.clients.messages"))
        for alias in node.names
        if alias.name.endswith("Request")
    }
    keys = {key_of(place, name): f"{name} in {place}" for place, name in sorted(imported)}
    assert {name for key, name in keys.items() if key not in NEEDS_BY_KEY} == set()
    assert {need.request for key, need in NEEDS_BY_KEY.items() if key not in keys} == set(), "rows of what nothing asks"


def test_no_place_needs_a_higher_version_than_its_row_says() -> None:
    assert len(SITES) > 30
    higher = [site for site in SITES if site.lowest > NEEDS_BY_KEY[site.key].lowest]
    assert higher == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_answers_every_place_unless_preflight_names_what_it_lacks(release: str) -> None:
    """By the release's own table of requests, as ApiVersions says it to us."""
    unanswered = set()
    for site in SITES:
        need = NEEDS_BY_KEY[site.key]
        served = RELEASES[release].get(need.request)
        for listener in need.listeners:
            if served is None or listener not in served.listeners:
                unanswered.add((need.request, listener))
            else:
                highest = served.highest if site.highest is None else min(site.highest, served.highest)
                assert highest >= max(site.lowest, served.lowest), site
    known = {(need.request, listener) for need in NEEDS if need.is_optional for listener in need.listeners}
    lacking = {("DescribeConfigs", Listener.CONTROLLER)} if release == "3.6.2" else set()
    assert unanswered - known == lacking


class Recorder(Wire):
    """A node that notes what it is asked, and answers what leads to further questions only."""

    def __init__(self, listener: Listener, sent: set[tuple[Listener, int]]) -> None:
        super().__init__("h", 1)
        self._listener, self._sent = listener, sent

    def ask(self, request: Any, lowest: int, highest: int, **fields: Any) -> NoReturn:
        del lowest, highest, fields
        self._note(request)
        raise Unavailable("it answers nothing")

    def serves(self, request: Any) -> bool:
        return self._listener in NEWEST[NEEDS_BY_KEY[request.API_KEY].request].listeners

    def negotiate_version(self, request: Any, lowest: int, highest: int) -> int:
        del lowest
        self._note(request)
        return highest

    def api_versions(self) -> ApiVersions:
        self._note(ApiVersionsRequest)
        return ApiVersions({55: (0, 0)} if self._listener is Listener.BROKER else {}, migration_ready=False)

    def metadata(self) -> NodeMetadata:
        self._note(MetadataRequest)
        return NodeMetadata(CLUSTER, 1, frozenset({1, 2, 3}))

    def certificate(self) -> Certificate:
        return Certificate()

    def _note(self, request: Any) -> None:
        self._sent.add((self._listener, int(request.API_KEY)))


@cache
def observe_a_whole_cluster() -> frozenset[tuple[Listener, int]]:
    """What is sent to brokers in ZooKeeper mode and to their controllers, and again with two brokers in KRaft mode."""
    return frozenset().union(*(observe_with(frozenset(kraft)) for kraft in ((), {2, 3})))


def observe_with(kraft: frozenset[int]) -> set[tuple[Listener, int]]:
    sent: set[tuple[Listener, int]] = set()

    def wire(node: NodeSpec) -> Wire:
        of_broker = Listener.BROKER if node.id in kraft else Listener.ZK_BROKER
        return Recorder(Listener.CONTROLLER if node.role is NodeRole.CONTROLLER else of_broker, sent)

    def host(_: NodeSpec) -> NoReturn:
        raise Unavailable("no agent answers")

    with refusing_port() as port, ZooKeeper(ZooKeeperSettings(f"127.0.0.1:{port}", connect_timeout=0.1)) as zookeeper:
        tools = Tools(zookeeper, Admin(KafkaSettings({})), wire, host)
        with Observer(SPEC, tools, QUICK) as observer:
            observer.environment(observer.observe(EVERYTHING))
        StoredReads(BROKERS, CONTROLLERS, replace(tools, zk=NoZnodes())).read_everything()  # type: ignore[arg-type]
    return sent


def needs_of(listener: Listener) -> dict[int, RequestNeed]:
    return {key: need for key, need in NEEDS_BY_KEY.items() if listener in need.listeners}


@pytest.mark.parametrize("listener", Listener)
def test_every_kind_of_node_is_asked_only_what_its_rows_say(listener: Listener) -> None:
    sent = {key for asked, key in observe_a_whole_cluster() if asked is listener}
    assert sent
    assert sent - needs_of(listener).keys() == set(), "a gate asks these nodes without a row: preflight would not know"
    if listener is Listener.CONTROLLER:
        beside = {NEWEST[name].key for name in ("SaslHandshake", "SaslAuthenticate", "DescribeCluster")}
        assert needs_of(listener).keys() - beside == sent, "rows of what no controller is asked"


def test_nodes_are_asked_at_known_places_only() -> None:
    """A new place that asks a node must be among those whose nodes are known, so that the test above sees what controllers are asked."""
    found = Counter(
        place
        for place, tree in parsed()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and (
            (isinstance(call.func, ast.Name) and call.func.id == "Wire")
            or (isinstance(call.func, ast.Attribute) and call.func.attr == "wire" and call.args)
        )
    )
    assert dict(found) == PLACES


def test_a_mode_is_what_the_recorder_says() -> None:
    sent: set[tuple[Listener, int]] = set()
    assert Recorder(Listener.BROKER, sent).api_versions().mode is BrokerMode.KRAFT
    assert Recorder(Listener.ZK_BROKER, sent).api_versions().mode is BrokerMode.ZOOKEEPER
