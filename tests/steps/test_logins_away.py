"""A token endpoint that is away, or hangs, for longer than kmigrate's token lives: a roll holds, names it, and goes on by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients import oauth
from airflow_provider_kmigrate.clients.deadline import Deadline
from airflow_provider_kmigrate.clients.settings import OAuthLogin
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, TimedOut, Unavailable
from airflow_provider_kmigrate.observe import reads
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.run import run_step
from tests.kit.token_server import TokenServer, running
from tests.steps.phases import EVERYTHING, roll, some_in_migration, some_kraft
from tests.steps.sim import SimCluster
from tests.waiting import wait_until

WHAT = "kafka0:9093 SASL OAUTHBEARER"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    with running(tmp_path_factory.mktemp("tokens"), {"kmigrate": "canary"}, lifetime=1.0) as there:
        yield there


class LoggingIn(SimCluster):
    """Brokers answer a client that has a token: of this real server, by the product's own client."""

    login: OAuthLogin | None = None

    def observe(self, what: Fields, nodes: Sequence = (), groups: Sequence[str] = ()) -> ClusterView:
        view = super().observe(what, nodes, groups)
        try:
            if self.login is not None:
                oauth.token_for(self.login, WHAT, Deadline(0.3))
        except AuthenticationFailed:
            raise  # as the observer does
        except KMigrateError as error:
            unread = reads.unread_because(reads.PARTITIONS, error)
            brokers = {
                number: replace(broker, mode=None, listed_by=None, controller_id=None, answered_in=None)
                for number, broker in view.brokers.items()
            }
            nothing = {
                "partitions": None,
                "min_insync": None,
                "coordinators": None,
                "hosted": None,
                "moving": None,
                "topics": None,
            }
            return replace(view, brokers=brokers, unknowns=(*view.unknowns, unread), **nothing)
        return view


def has_token(login: OAuthLogin) -> bool:
    try:
        return bool(oauth.token_for(login, WHAT, Deadline(0.3)))
    except Unavailable:
        return False


@pytest.mark.parametrize("fault", ["away", "hanging"])
@pytest.mark.parametrize("roll_of", [(some_in_migration, BrokerMode.MIGRATION, 1), (some_kraft, BrokerMode.KRAFT, 2)])
def test_a_roll_holds_names_the_endpoint_and_goes_on(
    tmp_path: Path, server: TokenServer, fault: str, roll_of: tuple[Callable[..., object], BrokerMode, int]
) -> None:
    begin, target, index = roll_of
    cluster = LoggingIn()
    context = cluster.context(tmp_path)
    begin(cluster, context)
    cluster.login = OAuthLogin(server.url, "kmigrate", "canary")
    assert has_token(cluster.login)
    nodes = {key: (mine.stops, mine.starts, mine.text) for key, mine in cluster.nodes.items()}
    said = list[str]()
    with getattr(server, fault)():
        wait_until(lambda: not has_token(cluster.login), "the token's end")
        step = RollBroker(cluster.spec.brokers[index], target, cluster.spec.policy)
        step.patience = 2.0
        with pytest.raises(TimedOut, match=r"U09") as error:
            run_step(step, replace(context, say=said.append))
    for text in (str(error.value), "\n".join(said)):
        assert f"{WHAT}: the token endpoint {server.url}" in text
        assert "canary" not in text
    assert {key: (mine.stops, mine.starts, mine.text) for key, mine in cluster.nodes.items()} == nodes, "nothing was touched"
    roll(cluster, context, target)
    cluster.login = None
    assert all(broker.mode is target for broker in cluster.observe(EVERYTHING).brokers.values())
    assert cluster.disasters == []


@pytest.mark.parametrize("roll_of", [(some_in_migration, BrokerMode.MIGRATION, 1), (some_kraft, BrokerMode.KRAFT, 2)])
def test_a_login_that_is_refused_in_the_middle_ends_the_step_by_name_and_the_next_run_goes_on(
    tmp_path: Path, server: TokenServer, roll_of: tuple[Callable[..., object], BrokerMode, int]
) -> None:
    """The client's secret was changed: no retry helps, and nothing is touched."""
    begin, target, index = roll_of
    cluster = LoggingIn()
    context = cluster.context(tmp_path)
    begin(cluster, context)
    nodes = {key: (mine.stops, mine.starts, mine.text) for key, mine in cluster.nodes.items()}
    cluster.login = OAuthLogin(server.url, "kmigrate", "canary-old")
    with pytest.raises(AuthenticationFailed, match=rf"{WHAT}: the token endpoint .* refuses the client.*invalid_client") as error:
        run_step(RollBroker(cluster.spec.brokers[index], target, cluster.spec.policy), context)
    assert [reason.code for reason in error.value.reasons] == ["U09"]
    assert "canary" not in str(error.value)
    assert {key: (mine.stops, mine.starts, mine.text) for key, mine in cluster.nodes.items()} == nodes
    cluster.login = OAuthLogin(server.url, "kmigrate", "canary")
    roll(cluster, cluster.context(tmp_path), target)
    cluster.login = None
    assert all(broker.mode is target for broker in cluster.observe(EVERYTHING).brokers.values())
