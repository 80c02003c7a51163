"""A restart that would start another release or another Java than the node runs is held by name, before anything is stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, ProcessState, Software
from airflow_provider_kmigrate.core.migration import recovery, roll, rollback
from airflow_provider_kmigrate.core.migration.controllers import decide_finalize
from airflow_provider_kmigrate.core.migration.gates import (
    describe_mixed_releases,
    describe_software_changes,
    describe_unknown_software,
)
from airflow_provider_kmigrate.core.migration.plan_facts import hash_inputs
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core import back_views
from tests.core.plan_facts import facts_of
from tests.core.preflight_views import Case, healthy
from tests.core.views import DUAL, MIG, PRE, migration, readable, with_zk

JAVA, JAVA_21 = "/usr/lib/jvm/java-17/bin/java", "/usr/lib/jvm/java-21/bin/java"
SAME = Software("3.9.1", JAVA, "3.9.1", JAVA, "17.0.12")
NEWER = replace(SAME, disk_release="3.9.2")
OTHER_JAVA = replace(SAME, disk_java=JAVA_21, disk_java_version="21.0.5")
REPLACED_JAVA = replace(SAME, java=f"{JAVA} (deleted)", disk_java_version="17.0.13")
UNKNOWN = Software(disk_release="3.9.2", disk_java=JAVA)  # such as of a container


def with_software(view: ClusterView, software: Software | None) -> ClusterView:
    """The view with this software on each node."""
    brokers = {n: replace(b, process=replace(b.process, software=software)) for n, b in view.brokers.items()}
    controllers = {n: replace(c, process=replace(c.process, software=software)) for n, c in view.controllers.items()}
    return replace(view, brokers=brokers, controllers=controllers)


def begin_roll(software: Software | None) -> Decision:
    return roll.decide_restart(readable(with_software(PRE, software)), 0, MIG)


def roll_back(software: Software | None) -> Decision:
    later = with_zk(back_views.DUAL, migration=migration(60))
    view = with_software(replace(later, taken_at=back_views.DUAL.taken_at + 3), software)
    return rollback.decide_roll_back(readable(view), back_views.DUAL, 0, MIG)


def finalize(software: Software | None) -> Decision:
    view = with_software(replace(DUAL, taken_at=DUAL.taken_at + 3), software)
    return decide_finalize(readable(view), with_zk(DUAL, migration=migration(80)), 3000)


def reasons(decision: Decision) -> list[str]:
    return [str(reason) for reason in decision.reasons] if isinstance(decision, Wait) else []


@pytest.mark.parametrize("software", [None, SAME, UNKNOWN, Software()])
@pytest.mark.parametrize("decide", [begin_roll, roll_back, finalize])
def test_the_same_software_and_what_is_not_known_hold_no_restart(
    decide: Callable[[Software | None], Decision], software: Software | None
) -> None:
    assert isinstance(decide(software), Act)


@pytest.mark.parametrize("decide", [begin_roll, roll_back, finalize])
def test_another_release_on_disk_holds_every_restart_by_name(decide: Callable[[Software | None], Decision]) -> None:
    [reason] = reasons(decide(NEWER))
    assert "R15" in reason
    assert "would start Kafka 3.9.2, not 3.9.1, which runs" in reason


@pytest.mark.parametrize("software", [OTHER_JAVA, REPLACED_JAVA])
def test_another_java_on_disk_holds_a_migration_and_no_rollback(software: Software) -> None:
    assert all(
        "R15" in reason and "Java from" in reason for reason in reasons(begin_roll(software)) + reasons(finalize(software))
    )
    assert isinstance(begin_roll(software), Wait)
    assert isinstance(finalize(software), Wait)
    assert isinstance(roll_back(software), Act)


def test_no_controller_fails_over_to_another_release() -> None:
    assert recovery.may_recover(with_software(DUAL, OTHER_JAVA)).met
    gate = recovery.may_recover(with_software(DUAL, NEWER))
    assert [reason.code for reason in gate.reasons] == ["R15"]


def test_a_broker_beside_kraft_restarts_only_with_its_own_release() -> None:
    """It does not answer, and its file would make it a ZooKeeper broker of a cluster that KRaft owns."""
    broker = replace(PRE.brokers[0], mode=None)
    view = with_software(replace(DUAL, brokers={**DUAL.brokers, 0: replace(broker, in_zookeeper=True)}), SAME)
    assert isinstance(roll.decide_restart(readable(view), 0, MIG), Act)
    assert "R15" in str(reasons(roll.decide_restart(readable(with_software(view, NEWER)), 0, MIG)))


def upgrade(view: ClusterView, broker_id: int, release: str) -> ClusterView:
    """Somebody has upgraded this broker and started it again: it runs what its disk has."""
    broker = view.brokers[broker_id]
    upgraded = replace(broker, process=replace(broker.process, software=Software(release, JAVA, release, JAVA, "17.0.12")))
    return replace(view, brokers={**view.brokers, broker_id: upgraded})


@pytest.mark.parametrize("release", ["3.9.2", "3.8.1", "4.0.0"])
def test_a_broker_of_another_release_in_the_middle_of_a_roll_holds_the_next_restart(release: str) -> None:
    view = upgrade(with_software(PRE, SAME), 2, release)
    [reason] = reasons(roll.decide_restart(readable(view), 0, MIG))
    assert "R15" in reason
    assert f"broker 2 runs Kafka {release}" in reason
    assert "brokers 0, 1 and controllers 3000, 3001, 3002 run Kafka 3.9.1" in reason
    assert isinstance(roll.decide_restart(readable(upgrade(view, 2, "3.9.1")), 0, MIG), Act), (
        "it goes on once all run one release"
    )


def test_no_controller_leaves_the_migration_while_nodes_run_two_releases() -> None:
    view = upgrade(with_software(replace(DUAL, taken_at=DUAL.taken_at + 3), SAME), 1, "3.9.2")
    [reason] = reasons(decide_finalize(readable(view), with_zk(DUAL, migration=migration(80)), 3000))
    assert "broker 1 runs Kafka 3.9.2" in reason


def test_a_broker_of_another_release_holds_no_rollback() -> None:
    """The way out stays open: its own next start is of what it runs."""
    later = with_zk(back_views.DUAL, migration=migration(60))
    view = upgrade(with_software(replace(later, taken_at=back_views.DUAL.taken_at + 3), SAME), 2, "3.9.2")
    assert isinstance(rollback.decide_roll_back(readable(view), back_views.DUAL, 0, MIG), Act)


@pytest.mark.parametrize(
    ("releases", "text"),
    [
        ({}, ""),
        ({0: "3.9.1", 1: "3.9.1", 2: "3.9.1"}, ""),
        ({0: "3.9.1", 1: "", 2: "3.9.1"}, ""),
        ({0: "3.9.1", 1: "", 2: "3.9.2"}, "broker 0 runs Kafka 3.9.1, broker 2 runs Kafka 3.9.2"),
        ({0: "3.9.1", 1: "3.9.2", 2: "3.9.1"}, "brokers 0, 2 run Kafka 3.9.1, broker 1 runs Kafka 3.9.2"),
    ],
)
def test_releases_are_named_with_their_nodes(releases: dict[int, str], text: str) -> None:
    view = PRE
    for broker_id, release in releases.items():
        view = upgrade(view, broker_id, release)
    assert describe_mixed_releases(view.brokers.values()) == text
    stopped = [replace(b, process=replace(b.process, state=ProcessState.STOPPED)) for b in view.brokers.values()]
    assert describe_mixed_releases(stopped) == "", "what a stopped node ran is no matter"


def test_preflight_blocks_a_cluster_that_runs_two_patch_levels() -> None:
    """Brokers themselves report the line alone."""
    view, facts = case_with(SAME, SAME)
    found = [finding for finding in run_checks(upgrade(view, 1, "3.9.2"), facts) if finding.code == "R15"]
    assert [str(finding.severity) for finding in found] == ["block"]
    assert "broker 1 runs Kafka 3.9.2" in found[0].reason.text


def test_what_changed_is_said_in_whole_words() -> None:
    assert describe_software_changes(OTHER_JAVA) == [f"Java from {JAVA_21} (21.0.5), not the one that runs, {JAVA}"]
    assert len(describe_software_changes(replace(OTHER_JAVA, disk_release="4.0.0"))) == 2


def case_with(brokers: Software | None, controllers: Software | None) -> Case:
    view, facts = healthy()
    view = replace(
        view,
        brokers={n: replace(b, process=replace(b.process, software=brokers)) for n, b in view.brokers.items()},
        controllers={n: replace(c, process=replace(c.process, software=controllers)) for n, c in view.controllers.items()},
    )
    return view, facts


@pytest.mark.parametrize(
    ("brokers", "controllers", "texts"),
    [
        (None, None, []),
        (SAME, SAME, []),
        (SAME, Software(disk_release="3.9.1", disk_java=JAVA), []),
        (
            SAME,
            Software(disk_release="3.8.1", disk_java=JAVA),
            ["brokers run Kafka 3.9.1, the disks of others have another: controller 3000 (Kafka 3.8.1)"],
        ),
        (NEWER, SAME, ["the next start of these nodes is of other software: broker 0: Kafka 3.9.2, not 3.9.1, which runs"]),
    ],
)
def test_preflight_compares_each_disk_with_what_runs(
    brokers: Software | None, controllers: Software | None, texts: list[str]
) -> None:
    found = [finding for finding in run_checks(*case_with(brokers, controllers)) if finding.code == "R15"]
    assert [str(finding.severity) for finding in found] == ["block"] * len(texts)
    assert all(finding.reason.text.startswith(text) for finding, text in zip(found, texts, strict=True))


@pytest.mark.parametrize(
    ("software", "runs", "parts"),
    [
        (SAME, True, ""),
        (replace(SAME, release="", java=""), False, ""),
        (replace(SAME, release=""), True, "the release that it runs"),
        (replace(SAME, disk_release=""), True, "the release that its next start loads"),
        (replace(SAME, disk_java=""), False, "the Java of its next start"),
        (Software("3.9.1", JAVA), True, "the release that its next start loads, the Java of its next start"),
        (Software(), True, "the release that it runs, the release that its next start loads, the Java of its next start"),
    ],
)
def test_what_is_not_known_of_the_software_is_named(software: Software, runs: bool, parts: str) -> None:
    assert describe_unknown_software(software, runs=runs) == parts


def test_preflight_names_nodes_whose_software_is_not_known_and_does_not_block() -> None:
    """Such as those that commands start, and those in containers."""
    found = [finding for finding in run_checks(*case_with(replace(SAME, disk_release=""), SAME)) if finding.code == "R15"]
    [finding] = found
    assert finding.severity is Severity.UNKNOWN
    assert "broker 0 (the release that its next start loads), broker 1 (" in finding.reason.text
    assert "controller" not in finding.reason.text
    assert "`node install --software`" in finding.reason.remedy


def test_what_is_not_known_hides_no_change() -> None:
    """The release changed, and Java is not known: both are said."""
    found = [str(one.severity) for one in run_checks(*case_with(replace(NEWER, disk_java=""), SAME)) if one.code == "R15"]
    assert sorted(found) == ["block", "not known"]


def test_a_plan_is_bound_to_the_software_on_disk() -> None:
    planned, now = (hash_inputs(facts_of(case_with(brokers, SAME))) for brokers in (SAME, NEWER))
    assert {name for name in planned if planned[name] != now[name]} == {
        f"the release on the disk of broker {n}" for n in range(3)
    }
    assert hash_inputs(facts_of(case_with(SAME, NEWER))) == planned, "a controller that was not started yet reports less"
    restarted = hash_inputs(facts_of(case_with(replace(SAME, java=""), SAME)))
    assert restarted == planned, "which process runs is no input of a plan"
    assert hash_inputs(facts_of(case_with(None, SAME)))["the release on the disk of broker 0"] == "not read"
