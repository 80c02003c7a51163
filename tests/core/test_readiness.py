"""Whether a rollback is assured: each thing that it depends on, in each phase, and who asks."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    Age,
    BackupFacts,
    Broker,
    ClusterView,
    Malformed,
    NodeFiles,
    Reason,
    TopicMetadata,
    ZooKeeperServer,
)
from airflow_provider_kmigrate.core.migration import gates, readiness, roll, waits
from airflow_provider_kmigrate.core.migration.controllers import ApprovedState, decide_finalize
from airflow_provider_kmigrate.core.migration.gates import GateState
from airflow_provider_kmigrate.core.migration.readiness import (
    Readiness,
    ReadinessAsk,
    ReadinessLevel,
    RollbackPart,
    describe_readiness,
    find_shortcomings,
    fingerprint,
    forecast_rollback,
    judge_rollback,
    render_document,
    to_document,
)
from airflow_provider_kmigrate.core.migration.rollback import decide_roll_back, decide_rolled_back, plan
from airflow_provider_kmigrate.core.monitoring.gauges import readiness_gauges
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage
from tests.core.back_views import handover_decision
from tests.core.readiness_parts import taken_out
from tests.core.views import (
    BARE,
    FILES,
    FLAGGED,
    HALF,
    KRAFT,
    MIG,
    SERVERS,
    ZK,
    cluster,
    computing,
    migration,
    readable,
    with_broker,
    with_controller,
    with_zk,
)

NONE = (None, None, None)
NOW = 1_000_000.0
HYBRID = readable(cluster([KRAFT, MIG, MIG], FLAGGED, 90))
DUAL = readable(cluster([KRAFT, KRAFT, KRAFT], FLAGGED, 90))
QUORUM: Any = DUAL.quorum
MIGRATED: Any = DUAL.migration
PRE = readable(cluster([ZK, ZK, ZK], FLAGGED, -1))
FIRST = readable(cluster([MIG, ZK, ZK], FLAGGED, -1))
STRANGER = Broker(7, listed_by=frozenset({0, 1, 2}), in_zookeeper=False, named=False)
KEYS = "c03bf67f0f3d0440"  # of a KRaft broker's file
BARE_FILES = NodeFiles({"process.roles": "controller"}, has_metadata_log=True, edited=())
NOT_YET, NEVER = GateState.NOT_YET, GateState.NEVER
READY, DEGRADED, LOST = ReadinessLevel
P = RollbackPart


def joined(view: ClusterView) -> ClusterView:
    """An autoscaler has started a broker."""
    return replace(view, brokers={**view.brokers, 7: STRANGER})


def reasons_of(decision: Decision) -> tuple[Reason, ...]:
    assert isinstance(decision, Wait | Refuse)
    return decision.reasons


def files(view: ClusterView, broker: int, **changes: Any) -> ClusterView:
    return with_broker(view, broker, files=replace(view.brokers[broker].files, **changes))


def behind(view: ClusterView) -> ClusterView:
    """The lag that the finding had."""
    end = 90 + 1 + 999_949
    assert view.quorum is not None
    return replace(view, quorum=replace(view.quorum, high_watermark=end, voters=dict.fromkeys(view.quorum.voters, end)))


def still(view: ClusterView) -> ClusterView:
    return with_zk(view, migration=replace(view.migration, age=Age(60.0, 60.1))) if view.migration else view


def ensemble(*modes: str | None) -> tuple[ZooKeeperServer, ...]:
    return tuple(ZooKeeperServer(f"z{number}:2181", "3.8.4", mode) for number, mode in enumerate(modes))


def plain(view: ClusterView) -> ClusterView:
    """A broker was started with its first file, which fits the mode that it runs in then."""
    return with_broker(files(view, 2, properties=FILES[ZK]), 2, mode=ZK)


LACKING: tuple[dict[str, TopicMetadata], dict[str, TopicMetadata]] = ({}, {"orders": TopicMetadata("orders", "id", {})})
GONE = (Reason("O01", "The original of broker 1 is missing."),)
FULL = (Reason("O05", "No space left."),)

CASES = [
    # name, what happened, the only part that shows it, its code, whether waiting may help
    ("a plain broker beside KRaft", plain, P.ALARMS, "P07", NEVER),
    ("a znode is malformed", lambda v: with_zk(v, migration=Malformed("/migration", "x")), P.OPEN, "P04", NEVER),
    ("an autoscaler started a broker", joined, P.BROKERS, "G39", NOT_YET),
    ("a controller is unresponsive", lambda v: with_controller(v, 3001, answers=False, migration_flag=None), P.CONTROLLERS, "G23", NOT_YET),
    ("no controller leads", lambda v: replace(v, quorum=replace(v.quorum, voters={3000: 93, 3001: -9999})), P.CONTROLLERS, "G20", NOT_YET),
    ("ZooKeeper is a million records behind", behind, P.DUAL_WRITE, "G07", NOT_YET),
    ("the dual-write does not move", still, P.DUAL_WRITE, "G07", NOT_YET),
    ("a topic is missing in ZooKeeper", lambda v: replace(v, topics=LACKING), P.EQUALITY, "E02", NOT_YET),
    ("both sides were not compared", lambda v: replace(v, stored={}), P.EQUALITY, "G00", NOT_YET),
    ("/controller_epoch was not read", lambda v: with_zk(v, controller_epoch=None), P.EPOCHS, "G00", NOT_YET),
    ("the states' epochs were not read", lambda v: replace(v, state_epoch=None), P.EPOCHS, "G00", NOT_YET),
    ("a client-metrics subscription", lambda v: replace(v, client_metrics=("lag",)), P.CLIENT_METRICS, "G09", NEVER),
    ("subscriptions were not read", lambda v: replace(v, client_metrics=None), P.CLIENT_METRICS, "G00", NOT_YET),
    ("brokers use two counts", lambda v: computing(v, HALF), P.COORDINATORS, "K01", NEVER),
    ("counts were not read", lambda v: computing(v, None), P.COORDINATORS, "K02", NOT_YET),
    ("one ZooKeeper is down", lambda v: replace(v, ensemble=ensemble("leader", "follower", None)), P.ENSEMBLE, "Z05", NOT_YET),
    ("no server was asked", lambda v: replace(v, ensemble=None), P.ENSEMBLE, "G00", NOT_YET),
    ("a file was set back", lambda v: files(v, 0, properties=FILES[ZK]), P.FILES, "O06", NEVER),
    ("a file was not read", lambda v: files(v, 0, properties=None), P.FILES, "G00", NOT_YET),
    ("a directory of a later release", lambda v: files(v, 0, meta={"/d": {"version": "2"}}), P.DIRECTORIES, "O08", NEVER),
    ("another broker's directory", lambda v: files(v, 0, meta={"/d": {"node.id": "9"}}), P.DIRECTORIES, "M01", NEVER),
    ("a directory was not read", lambda v: files(v, 0, meta=None), P.DIRECTORIES, "G00", NOT_YET),
    ("a disk is full", lambda v: files(v, 0, free=4096), P.SPACE, "O09", NOT_YET),
    ("free space was not read", lambda v: files(v, 0, free=None), P.SPACE, "G00", NOT_YET),
    ("the backup cannot be written", lambda v: replace(v, backup=BackupFacts({0: "a"}, (), FULL)), P.SPACE, "O05", NOT_YET),
    ("an original is gone", lambda v: replace(v, backup=BackupFacts({0: "a"}, GONE)), P.ORIGINALS, "O01", NEVER),
    ("the backup was not read", lambda v: replace(v, backup=None), P.ORIGINALS, "G00", NOT_YET),
]  # fmt: skip
NAMES = [case[0] for case in CASES]
every_case = pytest.mark.parametrize(("change", "part", "code", "state"), [case[1:] for case in CASES], ids=NAMES)
ROLLING = ReadinessAsk(rolling=frozenset({FileStage.KRAFT}))


def restart(view: Any) -> Any:
    return roll.decide_restart(view, 1, KRAFT)


def test_all_is_well_in_every_phase() -> None:
    for view in (HYBRID, DUAL, PRE, FIRST, readable(cluster([ZK, ZK, ZK], NONE))):
        assert judge_rollback(view, ReadinessAsk(), NOW) == Readiness(READY, forecast_rollback(view), readiness.evidence_of(view))
    assert isinstance(restart(HYBRID), Act)


@pytest.mark.parametrize("part", RollbackPart)
def test_each_part_alone_keeps_the_verdict_from_ready(part: Any, monkeypatch: Any) -> None:
    """Its cases make it so; with its gate taken out, and with that of any other part in place, the verdict would be ready."""
    changes = [case[1] for case in CASES if case[2] is part]
    assert changes, "a part without a case"
    verdicts = [judge_rollback(change(HYBRID), ROLLING, NOW) for change in changes]
    assert not any(verdict.level is READY for verdict in verdicts)
    taken_out(monkeypatch, part)
    assert all(judge_rollback(change(HYBRID), ROLLING, NOW).level is READY for change in changes)


@every_case
def test_each_reason_is_seen_by_its_part_and_by_no_other(change: Any, part: Any, code: Any, state: Any) -> None:
    found = find_shortcomings(change(HYBRID), ROLLING)
    assert {(each.part, each.reason.code, each.state) for each in found} == {(part, code, state)}
    assert [each.loses for each in found] == [part in {P.OPEN, P.ORIGINALS} and state is NEVER] * len(found)
    assert all(each.fixed_by for each in found)


@every_case
def test_the_next_restart_is_not_allowed_and_would_be_without_that_gate(
    change: Any, part: Any, code: Any, state: Any, monkeypatch: Any
) -> None:
    decision = restart(change(HYBRID))
    assert isinstance(decision, Refuse if state is NEVER and part is not P.OPEN else Wait), (
        "who owns it may be readable in a moment"
    )
    assert code in {reason.code for reason in decision.reasons}
    taken_out(monkeypatch, part)
    guarded_twice = (
        part in {P.OPEN, P.ALARMS, P.BROKERS} or code == "G23"
    )  # by the phase, by "who may stop", by the flags of a roll
    assert isinstance(restart(change(HYBRID)), Act) is not guarded_twice


@every_case
def test_the_first_roll_needs_what_does_not_depend_on_the_takeover(change: Any, part: Any, code: Any, state: Any) -> None:
    later = {P.CONTROLLERS, P.DUAL_WRITE, P.EQUALITY, P.ALARMS}  # a plain broker is as it should be
    allowed = isinstance(roll.decide_restart(change(FIRST), 1, MIG), Act)
    expected = part in later and code != "G23"  # a roll asks for every controller itself
    assert allowed is expected


@every_case
def test_a_soak_that_sees_it_is_not_healthy_or_does_not_end(change: Any, part: Any, code: Any, state: Any) -> None:
    view, before = change(DUAL), with_zk(DUAL, migration=migration(80))
    before = view if code == "G07" else before
    soaks, ends = waits.may_soak(view, before), waits.may_end_soak(view, before)
    beside = {P.EQUALITY, P.ORIGINALS}  # compared by the soak itself, read by the workers
    epochs = code == "G00" and view.state_epoch is None  # a soak need not read them: the handover does
    assert (soaks.met and ends.met) is (part in beside or epochs)
    if part in waits.SOAK_WATCHES and not epochs:
        assert not soaks.met, "one observation restarts the time"


@every_case
def test_no_controller_loses_its_flag_while_it_is_so(change: Any, part: Any, code: Any, state: Any) -> None:
    view, before = change(DUAL), with_zk(DUAL, migration=migration(80))
    decision = decide_finalize(replace(view, taken_at=DUAL.taken_at + 3), view if code == "G07" else before, 3000)
    assert isinstance(decision, Act) is (part is P.ORIGINALS), "they are read at the act itself (`refuse_if_rollback_lost`)"


def finalize(view: ClusterView, approved: ClusterView) -> Any:
    earlier = with_zk(DUAL, migration=migration(80))
    return decide_finalize(view, earlier, 3000, ApprovedState(rests_on=readiness.evidence_of(approved)))


APPROVED = replace(DUAL, kafka_cluster_id="id", metadata_version="3.9-IV0", backup=BackupFacts(dict.fromkeys(range(3), "sha")))
FOURTH = replace(
    APPROVED.brokers[0], id=3, files=replace(APPROVED.brokers[0].files, meta={"/data": {"version": "1", "node.id": "3"}})
)
EVIDENCE = [
    ("an original was replaced, with its hash", {"backup": BackupFacts({0: "sha", 1: "sha", 2: "other"})}, "original 2 (sha then, other now)"),
    ("metadata.version was raised", {"metadata_version": "4.0-IV0"}, "metadata.version (3.9-IV0 then, 4.0-IV0 now)"),
    ("another cluster", {"kafka_cluster_id": "other"}, "cluster (id then, other now)"),
    ("a directory's version", {"brokers": files(APPROVED, 1, meta={"/data": {"version": "0"}}).brokers}, f"broker 1 (kraft kraft 1 {KEYS} then, kraft kraft 0 {KEYS} now)"),
    ("a broker's file", {"brokers": files(APPROVED, 1, properties={"process.roles": "broker", "log.dirs": "/b"}).brokers}, f"broker 1 (kraft kraft 1 {KEYS} then, kraft kraft 1 "),
    ("a broker that the file names by now", {"brokers": {**APPROVED.brokers, 3: FOURTH}}, "broker 3 (nothing then"),
    ("a controller less", {"controllers": {c: seen for c, seen in APPROVED.controllers.items() if c != 3002}}, "controller 3002 (named then, nothing now)"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), [row[1:] for row in EVIDENCE], ids=[row[0] for row in EVIDENCE])
def test_nothing_is_finalized_on_other_evidence_than_was_approved(changes: Any, said: Any) -> None:
    """Each gate holds: only the comparison shows it."""
    view = replace(APPROVED, **changes)
    known = {broker.id for broker in view.brokers.values()}
    view = replace(view, brokers={b: replace(seen, listed_by=frozenset(known)) for b, seen in view.brokers.items()})
    decision = finalize(view, APPROVED)
    assert isinstance(decision, Refuse)
    assert [reason.code for reason in decision.reasons] == ["H06"]
    assert said in decision.reasons[0].text
    assert isinstance(finalize(view, view), Act)
    assert isinstance(decide_finalize(view, with_zk(DUAL, migration=migration(80)), 3000), Act), "no verdict was shown"


@pytest.mark.parametrize("changes", [{"metadata_version": None}, {"kafka_cluster_id": None}, {"backup": None}])
def test_evidence_that_is_not_read_now_is_waited_for(changes: Any) -> None:
    assert isinstance(finalize(replace(APPROVED, **changes), APPROVED), Wait)


def test_a_finalization_of_ours_that_has_begun_is_completed_on_other_evidence_too() -> None:
    begun = with_controller(with_zk(APPROVED, unflagged=frozenset({3001})), 3001, migration_flag=False, files=BARE_FILES)
    other = replace(begun, metadata_version="4.0-IV0")
    assert isinstance(finalize(other, APPROVED), Act)
    meddled = with_zk(other, unflagged=frozenset())
    assert isinstance(finalize(meddled, APPROVED), Refuse), "kmigrate did not take that flag"


def test_alarms_are_part_of_it() -> None:
    found = find_shortcomings(with_controller(HYBRID, 3001, migration_flag=False))
    assert {(each.part, each.reason.code) for each in found} == {(P.ALARMS, "G05"), (P.CONTROLLERS, "G05"), (P.FILES, "O06")}


def test_the_file_that_this_roll_writes_is_no_fault_before_its_restart() -> None:
    early = files(HYBRID, 2, properties=FILES[KRAFT])
    assert isinstance(restart(early), Act)
    assert [each.part for each in find_shortcomings(early)] == [P.FILES], "it is one for who asks outside a roll"


def test_an_epoch_left_over_from_an_earlier_rollback_is_seen_while_zookeeper_owns_the_cluster() -> None:
    """KAFKA-20488: the handover raises the epoch above all states, so under KRaft they need only be known."""
    assert [each.reason.code for each in find_shortcomings(replace(FIRST, state_epoch=99))] == ["G02"]
    assert find_shortcomings(replace(HYBRID, state_epoch=99)) == ()


def test_what_two_comparisons_show_does_not_go_away() -> None:
    view = replace(DUAL, topics=LACKING)
    assert {each.state for each in find_shortcomings(view, ReadinessAsk(compared=DUAL))} == {NOT_YET}
    assert {each.state for each in find_shortcomings(view, ReadinessAsk(compared=view))} == {NEVER}


@pytest.mark.parametrize(("copied", "more"), [(-1, False), (0, False), (1, True)])
def test_kraft_may_hold_more_once_it_has_copied_the_first_record(copied: Any, more: Any) -> None:
    view = with_zk(DUAL, migration=replace(MIGRATED, metadata_offset=copied))
    assert readiness.kraft_may_hold_more(view) is more


def test_with_zookeeper_unread_kraft_may_hold_more() -> None:
    assert readiness.kraft_may_hold_more(replace(PRE, zk=None))


def test_movement_is_proven_by_an_earlier_look_too() -> None:
    now = with_zk(still(DUAL), migration=migration(95))
    assert find_shortcomings(now, ReadinessAsk(before=DUAL)) == ()
    assert [each.part for each in find_shortcomings(now)] == [P.DUAL_WRITE]


@pytest.mark.parametrize(
    ("modes", "spares"),
    [
        (("standalone",), True),
        ((None,), False),
        (("leader", "follower"), True),
        (("leader", None), False),
        (("leader", "follower", "follower"), True),
        (("leader", "follower", None), False),
        (("leader", "follower", "follower", "follower", None), True),
        (("leader", "follower", "follower", None, None), False),
    ],
)
def test_a_majority_must_be_left_if_one_more_server_fails(modes: Any, spares: Any) -> None:
    assert readiness.ensemble_spares_one(ensemble(*modes)).met is spares
    assert SERVERS[0].mode == "leader"


class TestPhases:
    def test_with_nothing_begun_there_is_nothing_to_lose(self) -> None:
        view = cluster([ZK, ZK, ZK], NONE)  # nothing else was read
        verdict = judge_rollback(view, ReadinessAsk(), NOW)
        assert verdict.level is READY
        assert "nothing to roll back" in describe_readiness(verdict, NOW)

    @pytest.mark.parametrize("view", [cluster([KRAFT] * 3, BARE, 90), cluster([KRAFT, KRAFT, MIG], BARE, 90)])
    def test_nothing_brings_a_rollback_back_once_the_migration_is_finalized(self, view: Any) -> None:
        verdict = judge_rollback(view, ReadinessAsk(), NOW)
        assert verdict.level is LOST
        assert [each.reason.code for each in verdict.reasons] == ["P12"]
        assert (verdict.brings_back, verdict.forecast.seconds) == ((), 0.0)
        assert "Nothing brings it back" in describe_readiness(verdict, NOW)

    @pytest.mark.parametrize("view", [FIRST, readable(cluster([MIG] * 3, FLAGGED, 90)), HYBRID, DUAL])
    def test_a_lost_original_says_what_would(self, view: Any) -> None:
        verdict = judge_rollback(replace(view, backup=BackupFacts({}, GONE)), ReadinessAsk(), NOW)
        assert verdict.level is LOST
        assert verdict.brings_back == (GONE[0].next_step,)

    def test_before_any_broker_has_moved_no_original_is_needed_but_by_the_roll(self) -> None:
        view = replace(PRE, backup=BackupFacts({}, GONE))
        assert judge_rollback(view, ReadinessAsk(), NOW).level is READY
        assert judge_rollback(view, ReadinessAsk(rolling=frozenset({FileStage.MIGRATION})), NOW).level is LOST


class TestVerdict:
    def test_a_degraded_rollback_counts_since_it_first_was_degraded(self) -> None:
        view = replace(HYBRID, ensemble=None)
        first = judge_rollback(view, ReadinessAsk(), NOW)
        assert first.level is DEGRADED
        assert first.since == NOW
        later = judge_rollback(view, ReadinessAsk(), NOW + 600, unready_since=first.since)
        assert later.since == NOW
        assert "since 10 min: ZooKeeper ensemble" in describe_readiness(later, NOW + 600)

    def test_a_group_or_a_subscription_that_is_named_like_a_link_is_none_on_the_page(self) -> None:
        """Clients choose these names, and an administrator reads the page before an approval."""
        view = computing(replace(HYBRID, client_metrics=("[lag](http://x)",)), HALF)
        assert view.coordinators is not None
        view = replace(view, coordinators=replace(view.coordinators, groups=tuple(f"[yes{n}](http://x)" for n in range(9))))
        page = render_document(to_document(judge_rollback(view, ReadinessAsk(), NOW), NOW))
        assert "[yes" in page
        assert "[lag" in page
        assert "](" not in page

    def test_a_page_names_who_can_fix_what(self) -> None:
        page = render_document(
            to_document(judge_rollback(joined(replace(HYBRID, client_metrics=("lag",))), ReadinessAsk(), NOW), NOW)
        )
        assert "| cluster file names every broker | [G39] Brokers that the cluster file does not name: 7." in page
        assert "| the owner of the subscriptions |" in page
        assert (
            f"Fingerprint: `{fingerprint(judge_rollback(joined(replace(HYBRID, client_metrics=('lag',))), ReadinessAsk(), NOW))}`"
            in page
        )

    def test_the_verdicts_hash_changes_with_what_it_rests_on_and_with_nothing_else(self) -> None:
        hashes = [
            fingerprint(judge_rollback(change(DUAL), ReadinessAsk(), NOW))
            for change in (lambda view: view, *(c[1] for c in CASES))
        ]
        same = [
            judge_rollback(DUAL, ReadinessAsk(), NOW + 9999),
            judge_rollback(replace(DUAL, quorum=replace(QUORUM, high_watermark=94)), ReadinessAsk(), NOW),
            judge_rollback(replace(DUAL, taken_at=5.0), ReadinessAsk(), NOW, restart_seconds=3.0),
        ]
        assert {fingerprint(each) for each in same} == {hashes[0]}
        assert hashes[0] not in hashes[1:]
        other = replace(DUAL, backup=BackupFacts({0: "sha", 1: "sha", 2: "another"}))
        assert fingerprint(judge_rollback(other, ReadinessAsk(), NOW)) != hashes[0]

    def test_the_verdict_is_exported_as_numbers(self) -> None:
        def numbers(view: Any, **since: Any) -> Any:
            found = readiness_gauges(judge_rollback(view, ReadinessAsk(), NOW, **since), NOW)
            return {" ".join((each.name, *each.tags.values())): each.value for each in found}

        gauges = numbers(behind(HYBRID), unready_since=NOW - 60)
        assert (gauges["readiness"], gauges["unready_seconds"], gauges["readiness_part dual_write"]) == (1.0, 60.0, 0.0)
        assert len(gauges) == 3 + len(RollbackPart)
        assert numbers(HYBRID)["readiness"] == 2.0
        lost = numbers(cluster([KRAFT] * 3, BARE, 90))
        assert (lost["readiness"], "rollback_seconds" in lost) == (0.0, False)

    @settings(max_examples=60, deadline=None)
    @given(st.sets(st.integers(0, len(CASES) - 1), max_size=4))
    def test_the_verdict_is_as_bad_as_the_worst_of_all_that_happened(self, picked: Any) -> None:
        view = HYBRID
        for number in sorted(picked):
            view = CASES[number][1](view)
        verdict, rows = judge_rollback(view, ReadinessAsk(), NOW), find_shortcomings(view)
        assert (verdict.level is READY) is (not rows)
        assert (verdict.level is LOST) is any(row.loses for row in rows)
        assert verdict.reasons == rows
        assert bool(picked) is bool(rows), "nothing hides another"

    def test_a_part_that_was_not_asked_for_is_not_judged(self) -> None:
        blind = cluster([KRAFT, MIG, MIG], FLAGGED, 90)
        for count in (1, 2):
            for parts in combinations(RollbackPart, count):
                assert {each.part for each in find_shortcomings(blind, ReadinessAsk(frozenset(parts)))} <= set(parts)
        assert {each.part for each in find_shortcomings(blind)} >= {P.EQUALITY, P.ENSEMBLE, P.DIRECTORIES, P.SPACE, P.ORIGINALS}


class TestForecast:
    @pytest.mark.parametrize(
        ("view", "restarts", "more"),
        [
            (DUAL, 6, 30 + 30 + 3 * 10),
            (HYBRID, 4, 30 + 30 + 3 * 10),
            (FIRST, 1, 3 * 10),
            (PRE, 0, 3 * 10),
            (cluster([KRAFT, None, MIG], FLAGGED, 90), 5, 30 + 30 + 3 * 10),
            (cluster([ZK, ZK, ZK], NONE), 0, 0),
        ],
    )
    def test_a_kraft_broker_restarts_twice_and_one_in_migration_mode_once(self, view: Any, restarts: Any, more: Any) -> None:
        forecast = forecast_rollback(view, 20.0)
        assert (forecast.restarts, forecast.seconds, forecast.measured) == (restarts, restarts * 20.0 + more, True)

    def test_without_a_measured_restart_it_says_so(self) -> None:
        forecast = forecast_rollback(replace(DUAL, partitions=None))
        assert (forecast.restart_seconds, forecast.measured) == (readiness.DEFAULT_RESTART, False)
        replicas = sum(len(partition.replicas) for partition in DUAL.partitions or ()) / len(DUAL.brokers)
        forecast = forecast_rollback(DUAL)
        assert (forecast.restart_seconds, forecast.measured) == (round(15.0 + 0.04 * replicas, 1), False)
        assert "assumed, none was measured yet" in describe_readiness(judge_rollback(DUAL, ReadinessAsk(), NOW), NOW)

    def test_what_it_would_lose(self) -> None:
        assert forecast_rollback(DUAL).loses == ()
        worst = behind(replace(DUAL, client_metrics=("lag",), topics=LACKING))
        text = " ".join(forecast_rollback(worst).loses)
        assert "999949 metadata records" in text
        assert "client-metrics subscriptions lag" in text
        assert "1 topic is in KRaft but not in ZooKeeper: orders" in text
        assert forecast_rollback(replace(FIRST, topics=LACKING)).loses == (), "KRaft has taken nothing over"


class TestStranger:
    """A broker that the cluster file does not name, in every phase, with its own code, and never "start its process"."""

    @pytest.mark.parametrize(("view", "code"), [(PRE, "G36"), (FIRST, "G36"), (HYBRID, "G39"), (DUAL, "G39")])
    def test_an_unnamed_broker_has_its_own_code_in_the_migration_and_the_soak(self, view: Any, code: Any) -> None:
        found = gates.all_brokers_named(joined(view))
        assert [reason.code for reason in found.reasons] == [code]
        target = MIG if code == "G36" else KRAFT
        for decision in (roll.decide_restart(joined(view), 1, target), roll.decide_restart(joined(view), 2, target)):
            said = {reason.code for reason in getattr(decision, "reasons", ())}
            assert "R01" not in said
            assert (code in said) is (view.brokers[1].mode is not target)
        assert waits.may_soak(joined(view), view).reasons[-1].code in {code, "P01"}

    def test_an_unnamed_broker_has_its_own_code_in_the_rollback(self) -> None:
        view = joined(HYBRID)
        back = decide_roll_back(view, HYBRID, 0, MIG)
        assert {reason.code for reason in reasons_of(back)} == {"G39"}
        stop = handover_decision(joined(readable(cluster([MIG] * 3, FLAGGED, 90))), HYBRID)
        assert [reason.code for reason in reasons_of(stop)] == ["G39"]
        end = decide_rolled_back(joined(cluster([ZK] * 3, (None,) * 3)))
        assert "G36" in {reason.code for reason in reasons_of(end)}
        assert not {"R01", "G22"} & {reason.code for reason in reasons_of(end)}
        steps = plan(view)
        assert any("does not name have gone: 7" in step for step in steps)
        assert not any("start them again: 7" in step for step in steps)
        assert not any("restart brokers" in step and "7" in step for step in steps)
