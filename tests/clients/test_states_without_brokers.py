"""Partition states from which brokers that do not answer are taken out, before a ZooKeeper controller reads them."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.clients.partition_states import create_states, state_without_brokers
from airflow_provider_kmigrate.exceptions import Failed
from tests.clients.memory_zookeeper import Ensemble, MemoryZooKeeper
from tests.kit.held import Held
from tests.kit.hostile import altered


def state(leader: int, isr: list[int], epoch: int = 7) -> bytes:
    """As Kafka writes it."""
    return f'{{"controller_epoch":4,"leader":{leader},"version":1,"leader_epoch":{epoch},"isr":{isr}}}'.replace(" ", "").encode()


@pytest.mark.parametrize(
    ("before", "silent", "after"),
    [
        (state(2, [2, 0, 1]), {2}, state(0, [0, 1], 8)),
        (state(0, [0, 1, 2]), {2}, state(0, [0, 1], 8)),
        (state(2, [2, 0, 1]), {0, 2}, state(1, [1], 8)),
        (state(-1, [2, 1]), {2}, state(1, [1], 8)),
        (state(2, [0, 1]), {2}, state(0, [0, 1], 8)),
        (state(0, [0, 1]), {2}, state(0, [0, 1])),  # nothing to do
        (state(2, [2]), {2}, state(2, [2])),  # nobody else has its records
        (state(2, []), {2}, state(2, [])),
        (b"", {2}, b""),
        (b"{", {2}, b"{"),
        (b"[2]", {2}, b"[2]"),
        (b'{"leader":2,"isr":[2,0]}', {2}, b'{"leader":2,"isr":[2,0]}'),  # no epoch that could be raised
        (b'{"leader":2,"leader_epoch":true,"isr":[2,0]}', {2}, b'{"leader":2,"leader_epoch":true,"isr":[2,0]}'),
        (b'{"leader":2,"leader_epoch":1,"isr":"20"}', {2}, b'{"leader":2,"leader_epoch":1,"isr":"20"}'),
    ],
)
def test_a_state_without_silent_brokers(before: bytes, silent: set[int], after: bytes) -> None:
    assert state_without_brokers(before, silent) == after


def test_a_state_that_others_wrote_stays_unless_it_has_kafkas_form() -> None:
    """Any client may have written it, where the tree is open."""
    good = json.loads(state(2, [2, 0]))
    for _, other in altered(good):
        written = json.dumps(other).encode()
        found = state_without_brokers(written, {2})
        assert found == written or json.loads(found)["isr"] == [broker for broker in other["isr"] if broker != 2]


@given(st.integers(-1, 4), st.lists(st.integers(0, 4), unique=True), st.sets(st.integers(0, 4)))
def test_no_silent_broker_leads_and_none_enters_an_isr(leader: int, isr: list[int], silent: set[int]) -> None:
    found = json.loads(state_without_brokers(state(leader, isr), silent))
    assert set(found["isr"]) <= set(isr)
    if set(isr) - silent:
        assert not silent & {found["leader"], *found["isr"]}
        assert set(found["isr"]) == set(isr) - silent
    assert state_without_brokers(state_without_brokers(state(leader, isr), silent), silent) == state_without_brokers(
        state(leader, isr), silent
    )


def test_no_state_is_made_of_an_epoch_that_cannot_be_read() -> None:
    ensemble = Ensemble("cluster-1")
    ensemble.put("/controller_epoch", b"x")
    with pytest.raises(Failed, match="no state was created"):
        create_states(cast("Any", MemoryZooKeeper(ensemble)), ["/brokers/topics/t/partitions/0/state"], Held())
