"""What is wrong with a file, and the lines that a finding names for it: with them nothing blocks, and no finding comes instead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.files.config_matrix import FileStage, Metas
from airflow_provider_kmigrate.core.files.properties import RenderFacts, broker_properties, edit, parse
from airflow_provider_kmigrate.core.model import NodeFiles
from airflow_provider_kmigrate.core.preflight.checks import blocking, findings
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding
from tests.core.preflight_around import everywhere
from tests.core.test_preflight import (
    CLUSTER_ID,
    FORMATTED,
    Case,
    Change,
    both,
    broker_1,
    codes,
    config,
    healthy,
    known,
    spec,
    started,
)

OWN = {"/data": {"version": "0", "broker.id": "1", "cluster.id": CLUSTER_ID}}
ANOTHERS = {"/data": {"version": "0", "broker.id": "2", "cluster.id": CLUSTER_ID}}
NO_ID = {"broker_id": ""}
ALL_GENERATED = {"reserved_broker_max_id": "0"}  # so that 1 is an id as ZooKeeper generates them
_ACT = re.compile(r"; (write|remove) ((?:`[^`]+`(?: and )?)+)")


def written(meta: Metas = OWN, /, **changes: str) -> Change:
    """Broker 1's file and its directories; an empty value: the key is not there."""
    keys = {key: value for key, value in config(1, **changes).items() if value}
    return broker_1(files=NodeFiles(keys, meta))


def running(meta: Metas = OWN, /, **changes: str) -> Change:
    """The broker was started with this file."""
    return both(written(meta, **changes), started)


def lines(found: Iterable[PreflightFinding], act: str) -> list[str]:
    """What the findings' texts say to write, or to remove."""
    acts = (match for finding in found for match in _ACT.findall(finding.reason.text))
    return [line for what, quoted in acts if what == act for line in re.findall(r"`([^`]+)`", quoted)]


def applied(case: Case) -> tuple[str, Case]:
    """Broker 1's file with all that its findings say, and the case with that file; the broker is not restarted."""
    view, facts = case
    found = [each for each in findings(*case) if each.code == "C04"]
    original = edit("", view.brokers[1].files.properties or {})
    text = edit(original, parse("\n".join(lines(found, "write"))), set(lines(found, "remove")))
    files = replace(view.brokers[1].files, properties=parse(text))
    return text, broker_1(files=files)(view, facts)


REPAIRED: list[tuple[str, Change, list[str]]] = [
    ("no id", running(**NO_ID), ["broker.id=1"]),
    ("generated", running(broker_id="-1"), ["broker.id=1"]),
    ("no number", running(broker_id="one"), ["broker.id=1"]),
    ("no id, and it is above the reserved ones", running(**NO_ID, **ALL_GENERATED), ["broker.id=1", "broker.id.generation.enable=false"]),
    ("generated above the reserved ones", running(broker_id="-1", **ALL_GENERATED), ["broker.id=1", "broker.id.generation.enable=false"]),
    ("above the reserved ones", running(**ALL_GENERATED), ["broker.id.generation.enable=false"]),
    ("above the reserved ones, and its directories name no owner", running(FORMATTED, **ALL_GENERATED), ["broker.id.generation.enable=false"]),
    ("generated under both names", running(broker_id="-1", node_id="-1"), ["broker.id=1", "node.id=1"]),
    ("generated under the new name", running(**NO_ID, node_id="-1"), ["node.id=1"]),
    ("two ids", running(node_id="2"), ["node.id=1"]),
    ("a key of another stage", running(controller_quorum_bootstrap_servers="c:9093"), []),
    ("a key with which the broker would not start", written(controller_listener_names="CONTROLLER"), []),
    ("another chroot than the broker runs with", written(zookeeper_connect="zk:2181"), ["zookeeper.connect=zk:2181/kafka"]),
    ("several at once", running(**NO_ID, **ALL_GENERATED, controller_quorum_bootstrap_servers="c:9093"), ["broker.id=1", "broker.id.generation.enable=false"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in REPAIRED], ids=[row[0] for row in REPAIRED])
def test_with_the_lines_of_its_findings_a_file_passes(change: Change, expected: list[str]) -> None:
    case = change(*healthy())
    found = [each for each in findings(*case) if each.code == "C04"]
    assert found
    assert all(_ACT.search(each.reason.text) for each in found)
    assert lines(found, "write") == expected
    text, after = applied(case)
    assert findings(*after) == ()
    for stage in (FileStage.MIGRATION, FileStage.KRAFT):
        broker_properties(text, stage, RenderFacts.of(after[1].spec, "3.9-IV0"))


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
    found = findings(*change(*healthy()))
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
    before = [each.code for each in blocking(findings(*case))]
    _, after = applied(case)
    left = [each.code for each in blocking(findings(*after))]
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
    (found,) = findings(*case)
    assert (found.code, lines([found], "write")) == ("C10", [line])
    assert codes(spec(controller_properties={**VAULT, **parse(line)})(*case)) == []


def test_an_idle_interval_is_removed_from_the_cluster_file() -> None:
    case = spec(controller_properties={"metadata.max.idle.interval.ms": "0"})(*healthy())
    assert codes(case) == ["C04"]
    assert codes(spec(controller_properties={})(*case)) == []
