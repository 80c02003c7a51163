"""All kinds together: equal, different, unread, not reported, lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.model import (
    Cause,
    ClusterView,
    Entities,
    Reason,
    Stored,
    StoredKind,
    TopicMetadata,
    ZkView,
)
from airflow_provider_kmigrate.core.migration import equivalence
from airflow_provider_kmigrate.core.migration.gates import GateState
from tests.core.views import codes

CODES = {
    StoredKind.BROKER_SETTINGS: "E08",
    StoredKind.QUOTAS: "E08",
    StoredKind.CREDENTIALS: "E02",
    StoredKind.ACLS: "E08",
    StoredKind.TOKENS: "E08",
}
SOME = {"a": {"k": "1", "l": "2"}, "b": {"k": "1"}}
NOTHING = {kind: Stored({}) for kind in StoredKind}
EQUAL = ClusterView(0.0, topics=({}, {}), stored=NOTHING)


def with_kind(kind: StoredKind, stored: Stored) -> ClusterView:
    return replace(EQUAL, stored={**NOTHING, kind: stored})


@pytest.mark.parametrize(("kind", "code"), CODES.items())
def test_each_kind_has_its_code(kind: StoredKind, code: str) -> None:
    assert codes(equivalence.difference_reasons(with_kind(kind, Stored(SOME, {})))) == [code]
    assert codes(equivalence.difference_reasons(with_kind(kind, Stored({}, SOME)))) == [code]
    assert equivalence.difference_reasons(with_kind(kind, Stored(SOME, SOME))) == ()


def test_a_changed_setting_is_one_difference() -> None:
    changed = {"a": {"k": "9", "l": "2"}, "b": {"k": "1"}}
    (found,) = equivalence.find_differences(with_kind(StoredKind.QUOTAS, Stored(SOME, changed)))
    assert str(found) == "a k: 1 in ZooKeeper, 9 in KRaft"


def test_topics_are_compared_too_and_pending_deletions_explain() -> None:
    topic = {"t": TopicMetadata("t", "id", {})}
    view = replace(EQUAL, topics=(topic, {}))
    assert codes(equivalence.difference_reasons(view)) == ["E01"]
    assert equivalence.difference_reasons(replace(view, zk=ZkView(pending_deletions=("t",)))) == ()


@pytest.mark.parametrize("kind", list(StoredKind))
def test_a_kind_that_was_not_read_is_unknown(kind: StoredKind) -> None:
    view = replace(EQUAL, stored={each: NOTHING[each] for each in StoredKind if each is not kind})
    (reason,) = equivalence.unread_kind_reasons(view)
    assert (reason.code, str(kind) in reason.text) == ("G00", True)
    assert equivalence.nothing_lost(view, view).state is GateState.NOT_YET
    assert equivalence.nothing_lost(EQUAL, view).met, "it may have been a hiccup"


def test_nothing_read_at_all_is_unknown_with_its_reason() -> None:
    view = ClusterView(0.0, unknowns=(Reason("U05", "quotas: no answer", cause=Cause.UNREAD_STORED), Reason("U01", "elsewhere")))
    assert codes(equivalence.unread_kind_reasons(view)) == ["G00", "G00"]
    assert "quotas: no answer" in equivalence.unread_kind_reasons(view)[1].text
    assert "elsewhere" not in equivalence.unread_kind_reasons(view)[1].text


def test_what_is_not_reported_is_not_compared_and_named() -> None:
    one = with_kind(
        StoredKind.BROKER_SETTINGS,
        Stored({**SOME, "c": {"k": "1"}}, {"b": {"k": "1"}}, {"a": "unresponsive", "c": "unresponsive"}),
    )
    assert equivalence.difference_reasons(one) == ()
    assert " 1 broker setting," in equivalence.describe_equality(one)
    assert "Not compared: broker settings of a, c (unresponsive)." in equivalence.describe_equality(one)
    whole = with_kind(StoredKind.ACLS, Stored(SOME, unreported={Stored.EVERY: "no authorizer"}))
    assert equivalence.difference_reasons(whole) == ()
    assert "Not compared: ACLs (no authorizer)." in equivalence.describe_equality(whole)
    assert " ACLs," not in equivalence.describe_equality(whole)


def test_an_entity_that_is_reported_counts_beside_one_that_is_not() -> None:
    view = with_kind(StoredKind.BROKER_SETTINGS, Stored(SOME, {"b": {}}, {"a": "unresponsive"}))
    assert [found.entity for found in equivalence.find_differences(view)] == ["b k"]


def test_equality_is_reported_with_its_numbers() -> None:
    stored = {**NOTHING, StoredKind.QUOTAS: Stored(SOME, SOME), StoredKind.TOKENS: Stored(SOME, SOME)}
    text = equivalence.describe_equality(replace(EQUAL, stored=stored))
    assert "0 topics, 0 broker settings, 3 quotas, 0 SCRAM credentials, 0 ACLs, 2 delegation tokens" in text
    assert equivalence.describe_equality(replace(EQUAL, stored={})).startswith("ZooKeeper and KRaft store the same 0 topics.")


@pytest.mark.parametrize(
    ("last", "used", "found"),
    [("1999", "1999", []), ("1999", "2000", ["E02"]), (None, "0", ["E02"]), ("999", None, []), (None, None, [])],
)
def test_no_producer_id_in_use_lies_beyond_the_last_block(last: str | None, used: str | None, found: list[str]) -> None:
    zookeeper, kraft = ({"producer ids": {"highest": each}} if each else {} for each in (last, used))
    view = with_kind(StoredKind.PRODUCER_IDS, Stored(zookeeper, kraft, {Stored.EVERY: "KRaft reports none"}))
    assert codes(equivalence.difference_reasons(view)) == found


def test_what_lasts_is_lost_and_what_was_on_its_way_is_not() -> None:
    moving, stays = with_kind(StoredKind.QUOTAS, Stored(SOME, {})), with_kind(StoredKind.ACLS, Stored(SOME, {}))
    assert equivalence.nothing_lost(moving, EQUAL).met
    assert equivalence.nothing_lost(EQUAL, moving).met
    assert equivalence.nothing_lost(moving, stays).met
    gate = equivalence.nothing_lost(stays, stays)
    assert (gate.state, codes(gate.reasons)) == (GateState.NEVER, ["E08"])


ENTITIES = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("kl"), st.sampled_from("12")))


def filled(entities: Entities) -> dict[str, dict[str, str]]:
    """Without those that have no settings, which are the same as none."""
    return {entity: dict(values) for entity, values in entities.items() if values}


@settings(max_examples=150, deadline=None)
@given(ENTITIES, ENTITIES, st.sampled_from(sorted(CODES)))
def test_nothing_is_found_exactly_where_both_sides_are_equal(one: Entities, other: Entities, kind: StoredKind) -> None:
    found = equivalence.compare_kind(kind, Stored(one, other))
    assert (found == ()) == (filled(one) == filled(other))
    assert len(found) == len(equivalence.compare_kind(kind, Stored(other, one)))


@settings(max_examples=100, deadline=None)
@given(ENTITIES, ENTITIES, st.sets(st.sampled_from("abc")))
def test_only_differences_of_reported_entities_are_found(one: Entities, other: Entities, unresponsive: set[str]) -> None:
    reported = {entity: values for entity, values in other.items() if entity not in unresponsive}
    found = equivalence.compare_kind(StoredKind.QUOTAS, Stored(one, reported, dict.fromkeys(unresponsive, "unresponsive")))
    assert not {each.entity[0] for each in found} & unresponsive
    spoken = {entity: values for entity, values in one.items() if entity not in unresponsive}
    assert (found == ()) == (filled(spoken) == filled(reported))
