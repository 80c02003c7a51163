"""What is wrong with a file, and the lines that a finding names for it: with them nothing blocks, and no finding comes instead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, Metas
from airflow_provider_kmigrate.core.node_files.properties import (
    RenderFacts,
    edit_properties,
    parse_properties,
    render_broker_file,
)
from airflow_provider_kmigrate.core.preflight.checks import blocking_findings, run_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding
from tests.core.preflight_around import everywhere
from tests.core.preflight_files_rows import NO_ID, OWN, REPAIRED, running, written
from tests.core.preflight_views import (
    CLUSTER_ID,
    FORMATTED,
    Case,
    Change,
    both,
    broker_1,
    codes,
    healthy,
    known,
    spec,
)

ANOTHERS = {"/data": {"version": "0", "broker.id": "2", "cluster.id": CLUSTER_ID}}
_ACT = re.compile(r"; (write|remove) ((?:`[^`]+`(?: and )?)+)")


def lines(found: Iterable[PreflightFinding], act: str) -> list[str]:
    """What the findings' texts say to write, or to remove."""
    acts = (match for finding in found for match in _ACT.findall(finding.reason.text))
    return [line for what, quoted in acts if what == act for line in re.findall(r"`([^`]+)`", quoted)]


def applied(case: Case) -> tuple[str, Case]:
    """Broker 1's file with all that its findings say, and the case with that file; the broker is not restarted."""
    view, facts = case
    found = [each for each in run_checks(*case) if each.code == "C04"]
    original = edit_properties("", view.brokers[1].files.properties or {})
    text = edit_properties(original, parse_properties("\n".join(lines(found, "write"))), set(lines(found, "remove")))
    files = replace(view.brokers[1].files, properties=parse_properties(text))
    return text, broker_1(files=files)(view, facts)


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in REPAIRED], ids=[row[0] for row in REPAIRED])
def test_with_the_lines_of_its_findings_a_file_passes(change: Change, expected: list[str]) -> None:
    case = change(*healthy())
    found = [each for each in run_checks(*case) if each.code == "C04"]
    assert found
    assert all(_ACT.search(each.reason.text) for each in found)
    assert lines(found, "write") == expected
    text, after = applied(case)
    assert run_checks(*after) == ()
    for stage in (FileStage.MIGRATION, FileStage.KRAFT):
        render_broker_file(text, stage, RenderFacts.of(after[1].spec, "3.9-IV0"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (running(FORMATTED, **NO_ID), ["C04"]),
        (running(ANOTHERS, **NO_ID), ["C04", "M01"]),
        (running(broker_id="2"), ["M01", "B15"]),
        (running(broker_id="2", node_id="1"), ["M01", "C04", "B15"]),
        (written(zookeeper_metadata_migration_enable="true"), ["C04"] * 3),
        (known(chroot=""), ["C04"] * 3),
    ],
    ids=["no owner", "another owner", "another id", "another id first", "a rendered file", "the connection's chroot"],
)
def test_what_is_not_certain_gets_no_line(change: Change, expected: list[str]) -> None:
    found = run_checks(*change(*healthy()))
    assert {each.code for each in found} - {"B15"} == {*expected} - {"B15"}
    assert [line for act in ("write", "remove") for line in lines(found, act)] == []


_VALUES = {
    "broker_id": ("", "-1", "1", "one", "2"),
    "node_id": ("", "-1", "1", "2"),
    "reserved_broker_max_id": ("", "0", "1000"),
    "broker_id_generation_enable": ("", "true", "false"),
    "controller_quorum_bootstrap_servers": ("", "c:9093"),
    "controller_listener_names": ("", "CONTROLLER"),
    "zookeeper_connect": ("zk:2181/kafka", "zk:2181"),
}


@given(st.fixed_dictionaries({key: st.sampled_from(values) for key, values in _VALUES.items()}), st.sampled_from([OWN, ANOTHERS]))
def test_no_line_leads_into_another_block(changes: dict[str, str], meta: Metas) -> None:
    case = running(meta, **changes)(*healthy())
    before = [each.code for each in blocking_findings(run_checks(*case))]
    _, after = applied(case)
    left = [each.code for each in blocking_findings(run_checks(*after))]
    assert Counter(left) <= Counter(before)
    assert codes(applied(after)[1]) == codes(after), "all lines were named at once"


VAULT = {"ssl.key.password": "${vault:kafka:key}"}


@pytest.mark.parametrize(
    ("brokers", "line"),
    [
        ({}, "config.providers=vault"),
        ({"config_providers": "file", "ssl_keystore_password": "${file:/a:b}"}, "config.providers=file,vault"),
    ],
)
def test_the_providers_of_the_text_resolve_every_reference(brokers: dict[str, str], line: str) -> None:
    case = both(everywhere(**brokers), spec(controller_properties=VAULT))(*healthy())
    (found,) = run_checks(*case)
    assert (found.code, lines([found], "write")) == ("C10", [line])
    assert codes(spec(controller_properties={**VAULT, **parse_properties(line)})(*case)) == []


def test_an_idle_interval_is_removed_from_the_cluster_file() -> None:
    case = spec(controller_properties={"metadata.max.idle.interval.ms": "0"})(*healthy())
    assert codes(case) == ["C04"]
    assert codes(spec(controller_properties={})(*case)) == []
