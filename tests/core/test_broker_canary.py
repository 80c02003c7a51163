"""The verdict on the first broker of a pass: tables of what counts, and properties that no sequence of observations may break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, NodeFiles
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.migration.gates import GateState
from airflow_provider_kmigrate.core.migration.roll import (
    JUDGED_FOR,
    MIN_SAMPLES,
    SETTLING,
    BakeSample,
    count_departures,
    decide_restart,
    judge_bake,
    may_bake,
    may_stop,
    may_stop_unhealthy,
    take_bake_sample,
)
from airflow_provider_kmigrate.core.migration.rollback import decide_roll_back_canary
from tests.core.views import FILES, HALF, KRAFT, MIG, ONE_UNREAD, ZK, cluster, computing, migration, with_broker, with_zk

BAKE = 600.0
HERE, ELSE = 0, (1, 2)
IDS = (HERE, *ELSE)


def observe(at: float, mine: float | None = 0.005, others: float | None = 0.005, out: Sequence[str] = ()) -> BakeSample:
    """One observation; None: no answer."""
    seconds = {HERE: mine, **dict.fromkeys(ELSE, others)}
    unresponsive = frozenset(one for one, took in seconds.items() if took is None)
    reported = {one: took for one, took in seconds.items() if took is not None}
    return BakeSample(at, reported, unresponsive, {one: frozenset(out if one == HERE else ()) for one in IDS})


def observations(*mine: float | None, others: float | None = 0.005, every: float = 0.5) -> list[BakeSample]:
    return [observe(100.0 + every * number, each, others) for number, each in enumerate(mine)]


def found(since: Sequence[BakeSample], before: Sequence[BakeSample] = (), watched: float = SETTLING) -> list[str]:
    return [reason.code for reason in judge_bake(before, since, HERE, BAKE, watched) or ()]


WELL = observations(*[0.005] * 40)


@pytest.mark.parametrize(
    ("mine", "others", "before", "codes"),
    [
        (0.005, 0.005, 0.005, []),
        (0.2, 0.005, 0.005, []),  # forty times slower, and no client would notice
        (0.3, 0.005, 0.005, ["V23"]),
        (0.3, 0.005, None, ["V23"]),  # not observed before
        (0.3, None, 0.005, ["V23"]),  # a cluster of one
        (0.3, 0.1, 0.005, []),  # the others are slow too
        (0.3, 0.005, 0.1, []),  # it has always been
        (0.3, None, None, []),  # nothing to compare with
        (1.5, 0.1, 0.1, ["V23"]),
    ],
)
def test_answer_times(mine, others, before, codes):
    since = [observe(100.0 + n, mine, others) for n in range(40)]
    if others is None:
        since = [replace(one, unresponsive=frozenset()) for one in since]
    assert found(since, observations(*[before] * MIN_SAMPLES) if before else ()) == codes


@pytest.mark.parametrize(
    ("missed", "others", "codes"),
    [(0, 0, []), (8, 0, []), (9, 0, ["V23"]), (9, 5, []), (11, 5, ["V23"]), (30, 30, []), (30, 0, ["V23"])],
)
def test_missing_answers_in_thirty_observations(missed, others, codes):
    rows = [observe(100.0 + n * 0.5, None if n < missed else 0.005, None if n < others else 0.005) for n in range(30)]
    assert found(rows) == codes


@pytest.mark.parametrize(("left", "codes"), [(0, []), (2, []), (3, ["V23"]), (7, ["V23"])])
def test_isrs_that_it_leaves_again_and_again(left, codes):
    rows = [observe(100.0 + n, out=("a-0", "b-1") if n % 10 == 5 and n < 10 * left else ()) for n in range(100)]
    assert count_departures(rows, HERE) == left
    assert found(rows) == codes


def test_isrs_that_others_leave_as_often_are_not_its_fault():
    rows = [
        replace(observe(100.0 + n), outside=dict.fromkeys(IDS, frozenset({"a-0"} if n % 10 == 5 else ()))) for n in range(100)
    ]
    assert found(rows) == []


def test_an_observation_that_did_not_read_the_partitions_is_no_departure():
    rows = [
        replace(observe(100.0 + n, out=("a-0",)), outside=None) if n % 2 else observe(100.0 + n, out=("a-0",)) for n in range(50)
    ]
    assert count_departures(rows, HERE) == 0


def test_the_first_seconds_do_not_count():
    cold = [observe(100.0 + n * 0.5, 3.0 if n * 0.5 < SETTLING else 0.005) for n in range(60)]
    verdicts = [judge_bake((), cold[: n + 1], HERE, BAKE) for n in range(len(cold))]
    assert not any(verdicts)
    assert (verdicts[20], verdicts[-1]) == (None, ())
    assert found(cold[:20], watched=SETTLING) == ["V23"], "the same observations of a broker that has long settled"


def test_what_was_bad_long_ago_is_over():
    assert found(observations(*[1.0] * 60, *[0.005] * 60)) == []
    assert found(observations(*[0.005] * 60, *[1.0] * 60)) == ["V23"]


def test_slow_observations_are_judged_by_their_number():
    """If an observation takes seconds, the window holds too few of them."""
    rows = observations(*[1.0] * MIN_SAMPLES, every=JUDGED_FOR)
    assert found(rows) == ["V23"]
    assert judge_bake((), rows[:-1], HERE, BAKE, SETTLING) is None


def test_a_short_bake_settles_in_half_of_it():
    rows = observations(*[1.0] * 20, every=0.2)
    assert judge_bake((), rows, HERE, 2.0)
    assert judge_bake((), rows, HERE, BAKE) is None


def test_the_sample_of_an_observation():
    view = with_broker(cluster([MIG, ZK, None], (True, True, True), -1), 0, answered_in=0.02)
    got = take_bake_sample(view)
    assert (got.at, got.seconds, got.unresponsive) == (view.taken_at, {0: 0.02}, frozenset({2}))
    assert got.outside is not None
    assert {one: len(names) for one, names in got.outside.items()} == {0: 0, 1: 0, 2: 6}
    assert take_bake_sample(replace(view, partitions=None)).outside is None


def test_brokers_are_equal_whatever_their_answers_took():
    view = cluster([MIG, ZK, ZK])
    assert with_broker(view, 0, answered_in=0.02).brokers == view.brokers


@pytest.mark.parametrize(
    ("mode", "before"), [(BrokerMode.MIGRATION, BrokerMode.ZOOKEEPER), (BrokerMode.KRAFT, BrokerMode.MIGRATION)]
)
def test_the_mode_before(mode, before):
    assert roll.previous_mode(mode) is before


def out_of_sync(view: ClusterView, broker: int) -> ClusterView:
    rows = tuple(replace(row, isr=tuple(one for one in row.isr if one != broker)) for row in view.partitions or ())
    return replace(view, partitions=tuple(replace(row, leader=row.isr[0]) for row in rows))


def test_a_broker_that_is_out_of_sync_itself_may_be_given_up():
    view = out_of_sync(cluster([MIG, ZK, ZK], (True, True, True), -1), 0)
    assert [reason.code for reason in may_stop(view, (0,)).reasons] == ["S02"]
    assert may_stop_unhealthy(view, 0).met
    assert [reason.code for reason in may_stop_unhealthy(out_of_sync(view, 1), 0).reasons] == ["S02"], (
        "another one is out of sync too"
    )
    assert [reason.code for reason in may_stop_unhealthy(replace(view, partitions=None), 0).reasons] == ["G00"]


FLAGS = (True, True, True)


@pytest.mark.parametrize(
    ("view", "state"),
    [
        (cluster([MIG, ZK, ZK], FLAGS, -1), GateState.MET),
        (cluster([MIG, ZK, ZK], (True, True, False), -1), GateState.NEVER),
        (cluster([KRAFT, MIG, ZK], FLAGS, 50), GateState.NEVER),
        (cluster([KRAFT, MIG, None], FLAGS, 50), GateState.NOT_YET),
    ],
)
def test_a_canary_bakes_on_under_no_alarm(view, state):
    assert may_bake(view).state is state


@pytest.mark.parametrize(
    ("view", "target", "decided"),
    [
        (cluster([MIG, ZK, ZK], FLAGS, -1), ZK, Act),
        (cluster([MIG, ZK, ZK], (None, None, None), -1), ZK, Act),  # a plain broker needs no controller
        (with_zk(cluster([MIG, ZK, ZK], FLAGS, -1), rolled_back={1: ZK}), ZK, Act),
        (with_zk(cluster([MIG, ZK, ZK], FLAGS, -1), rolled_back={1: ZK, 2: ZK}), ZK, "G32"),
        (cluster([MIG, MIG, MIG], FLAGS, -1), ZK, "G32"),  # the copy begins
        (cluster([MIG, MIG, MIG], FLAGS, 50), ZK, "G32"),
        (cluster([MIG, None, ZK], FLAGS, -1), ZK, "R01"),
        (cluster([ZK, ZK, ZK], FLAGS, -1), ZK, Done),
        (cluster([KRAFT, MIG, MIG], FLAGS, 50), MIG, Act),
        (cluster([KRAFT, MIG, MIG], (None, None, None), 50), MIG, "G23"),
        (cluster([KRAFT, MIG, MIG], (True, False, True), 50), MIG, "G05"),
        (cluster([KRAFT, KRAFT, KRAFT], (False, False, False), 50), MIG, "P12"),
        (replace(cluster([KRAFT, MIG, MIG], FLAGS, 50), zk=None), MIG, "U01"),
        (computing(cluster([KRAFT, MIG, MIG], FLAGS, 50), {0: None, 1: 15, 2: 15}), MIG, Act),  # it may be too slow to answer
        (computing(cluster([KRAFT, MIG, MIG], FLAGS, 50), ONE_UNREAD), MIG, "K02"),
        (computing(cluster([KRAFT, MIG, MIG], FLAGS, 50), HALF), MIG, "K01"),
    ],
)
def test_when_one_broker_alone_may_be_rolled_back(view, target, decided):
    first = view if view.zk is None or view.zk.migration is None else with_zk(view, migration=migration(1))
    named = replace(view, brokers={one: replace(broker, controller_id=0) for one, broker in view.brokers.items()})
    got = decide_roll_back_canary(named, first, 0, target)
    if isinstance(decided, str):
        assert isinstance(got, Wait | Refuse)
        assert decided in {reason.code for reason in got.reasons}
    else:
        assert isinstance(got, decided)


@pytest.mark.parametrize(
    ("noted", "owned", "decided"),
    [({}, False, "R01"), ({0: ZK}, False, "start"), ({0: MIG}, False, "R01"), ({0: ZK}, True, "R01")],
)
def test_only_a_broker_that_kmigrate_rolled_back_is_started_with_the_file_of_the_mode_before(noted, owned, decided):
    """Only what the note says was kmigrate's own doing; and never a plain broker beside controllers that own the cluster."""
    view = with_zk(cluster([None, MIG, MIG], FLAGS, 50 if owned else -1), rolled_back=noted)
    down = with_broker(view, 0, files=NodeFiles(FILES[ZK]), in_zookeeper=False)
    got = decide_restart(down, 0, MIG)
    assert (got.verb if isinstance(got, Act) else got.reasons[0].code) == decided


answers = st.one_of(st.none(), st.floats(0.001, 5.0))
histories = st.lists(st.tuples(answers, answers, st.booleans()), max_size=60).map(
    lambda rows: [observe(100.0 + n, mine, others, ("a-0",) if out else ()) for n, (mine, others, out) in enumerate(rows)]
)


@given(histories, histories)
def test_too_few_observations_are_no_verdict_and_reasons_are_sure(before, since):
    verdict = judge_bake(before, since, HERE, BAKE, SETTLING)
    assert (verdict is not None) is (len(since) >= MIN_SAMPLES)


@given(histories, st.integers(0, 60))
def test_one_bad_observation_never_turns_a_healthy_broker_bad(before, bad):
    rows = [observe(one.at, None if n == bad else 0.005, 0.005, ("a-0",) if n == bad else ()) for n, one in enumerate(WELL)]
    assert found(rows, before) == []


@given(histories, histories)
def test_a_broker_that_is_like_all_others_is_not_worse(before, since):
    """Whatever affects every broker alike: the machine that observes, the network, the load."""
    alike = [
        replace(
            one, seconds=dict.fromkeys(IDS, one.seconds.get(1, 1.0)), unresponsive=frozenset(IDS if 1 in one.unresponsive else ())
        )
        for one in since
    ]
    alike = [
        replace(one, seconds={} if one.unresponsive else one.seconds, outside=dict.fromkeys(IDS, frozenset())) for one in alike
    ]
    assert found(alike, before) == []


@given(histories, histories, st.integers(1, 20))
def test_a_better_past_never_makes_it_seem_better(before, since, times):
    faster = [replace(one, seconds={key: took / times for key, took in one.seconds.items()}) for one in before]
    assert set(found(since, before)) <= set(found(since, faster))
