"""Who else changes the cluster, and how its nodes are run; each defect gives exactly its code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, LiveMembers, Taken
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.preflight_actors_rows import ROWS
from tests.core.preflight_around import environment, made
from tests.core.preflight_views import Change, both, broker_1, codes, config, healthy, zk


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (made(60.0), None),
        (made(2.0), None),
        (made(-0.1), None),
        (made(-3.0), "broker 1"),
        (made(-29.0), "broker 1"),
        (made(-31.0), None),
        (made(2.0, prepared=True), "broker 1"),
        (made(6.0, prepared=True), None),
        (both(made(-3.0), environment(taken={i: Taken(config(i, num_io_threads="9")) for i in range(3)})), None),
        (made(60.0, named=("/etc/kafka/server.properties",)), None),
        (made(60.0, named=("/run/cloudera/12-kafka/kafka.properties",)), "started with /run/cloudera/12-kafka/kafka.properties"),
    ],
)
def test_a_file_that_may_be_made_at_each_start_is_seen_before_the_first_restart(change: Change, said: str | None) -> None:
    found = [each for each in run_checks(*change(*healthy())) if each.code == "R13"]
    assert [each.severity for each in found] == ([] if said is None else [Severity.UNKNOWN])
    assert all((said or "") in each.reason.text for each in found)


def named_later(*groups: str) -> Change:
    """The cluster file lets these groups move later."""
    return lambda view, facts: (view, replace(facts, spec=replace(facts.spec, later_groups=groups)))


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        (zk(live_groups=("a", "b")), Severity.BLOCK),
        (both(zk(live_groups=("a", "b")), named_later("a")), Severity.BLOCK),
        (both(zk(live_groups=("a", "b")), named_later("a", "b", "c")), Severity.WARN),
        (both(zk(live_groups=("a",)), broker_1(mode=BrokerMode.MIGRATION)), Severity.WARN),
        (zk(live_groups=("a",), live_members={"a": LiveMembers(0, 0, 12.0)}), Severity.BLOCK),
    ],
)
def test_groups_move_before_the_first_roll_unless_the_cluster_file_names_them_all(change: Change, severity: Severity) -> None:
    (found,) = [each for each in run_checks(*change(*healthy())) if each.code == "G21"]
    assert found.severity is severity
    assert ("later_groups: [" in found.reason.text) is (severity is Severity.BLOCK)


def test_clients_that_commit_without_a_registration_are_named() -> None:
    change = zk(live_groups=("storm",), live_members={"storm": LiveMembers(0, 0, 12.0)})
    (found,) = [each for each in run_checks(*change(*healthy())) if each.code == "G21"]
    assert "storm (without a registration, committed 12 s ago)" in found.reason.text
    assert "Commits of storm fail as soon as the first broker is in KRaft mode" in found.reason.text


def test_groups_with_registrations_work_until_the_last_broker() -> None:
    change = zk(live_groups=("a",), live_members={"a": LiveMembers(1, 1)})
    (found,) = [each for each in run_checks(*change(*healthy())) if each.code == "G21"]
    assert "until the restart of the last broker" in found.reason.text
    assert "fail as soon as" not in found.reason.text


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_one_defect_gives_its_code(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected
