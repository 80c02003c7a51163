"""What is printed for a broken cluster file: the fix is one that works, and never one that weakens safety."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, StrictBool

from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec import load, loads
from airflow_provider_kmigrate.spec.model import ClusterFile, find_section_model
from tests.core.spec_fixes import LESS_SAFE

GOOD = """\
name: prod
cluster_id: q1Sh-9_ISia_zwGINzRvyQ
zookeeper: {conn_id: prod_zk}
kafka: {conn_id: prod_kafka}
hosts: {driver: agent, properties: /etc/kafka/server.properties, ssh_conn_id: prod_ssh}
brokers: [{id: 0, host: kafka0}, {id: 1, host: kafka1}]
controllers: [{id: 3000, host: ctl0, log_dir: /var/lib/kraft}]
"""
AUDIT = "conn_id: spark_default, result: /var/lib/kmigrate/audit, events: [/var/lib/kmigrate/events]"


def said(text: str) -> str:
    with pytest.raises(SpecError) as refused:
        loads(text)
    return str(refused.value)


@pytest.mark.parametrize(
    ("line", "where", "expected", "fix"),
    [
        ("windows: [22h-4h]", "windows[0]", "a list of daily times in UTC", "22:00-04:00"),
        ("windows: ['22:00-25:00']", "windows[0]", "a list of daily times in UTC", "22:00-04:00"),
        ("windows: ['22:00 - 04:00']", "windows[0]", "a list of daily times in UTC", "22:00-04:00"),
        ("stop_after: soaking", "stop_after[0]", "one of first_roll, dual_write, hybrid, soak", "write `soak`"),
        ("stop_after: [second]", "stop_after[0]", "one of first_roll, dual_write, hybrid, soak", "remove it, or write one of them"),
        (f"audit: {{{AUDIT}, allow: [duplicates]}}", "audit.allow[0]", "one of lost, diverged, stored_twice", "remove it, or write one"),
        (f"audit: {{{AUDIT}, allow: [comit_gap]}}", "audit.allow[0]", "one of lost, diverged, stored_twice", "write `commit_gap`"),
        ("deadlines: {second_roll: 4 hours}", "deadlines.second_roll", "how long a phase may last", "`second_roll: 4h`"),
        ("deadlines: {second-roll: 4h}", "deadlines.second-roll:", "one of pre_migration, first_roll", "rename `second-roll` to `second_roll`"),
        ("group_progress: {max_lag: {billing: none}}", "max_lag.billing", "a whole number from 1", "`billing: 1000`"),
        ("group_progress: {exclude: [[a]]}", "group_progress.exclude[0]", "the ids of groups", "write for example `nightly-loader`"),
        ("brokers: [5]", "brokers[0]", "a mapping", "`{id: 0, host: kafka0}`"),
        ("notify: [mail]", "notify[0]", "a mapping", "`{notifier: airflow.providers.smtp"),
    ],
)  # fmt: skip
def test_an_item_that_is_wrong_is_told_its_own_form(line: str, where: str, expected: str, fix: str) -> None:
    key = line.partition(":")[0]
    text = said(re.sub(rf"^{key}:.*\n", "", GOOD, flags=re.MULTILINE) + line + "\n")
    assert "[key]" not in text
    (problem,) = [part for part in text.splitlines() if where in part]
    assert expected in problem
    assert fix in problem.partition("Fix:")[2]


@pytest.mark.parametrize("release", ["3.9.2", "2.8.1", "4.0.0", "7.9.2", "7.9.2-ccs", "7.9.2-ce", "cp-7.9.2"])
def test_a_release_is_taken_as_a_log_names_it(release: str) -> None:
    assert loads(f"{GOOD}kafka_release: {release}\n").kafka_release == release


def list_switches(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, field in model.model_fields.items():
        if field.annotation is StrictBool or field.annotation is bool:
            yield (*path, name), field.examples[0]
        elif (section := find_section_model(field.annotation)) is not None:
            yield from list_switches(section, (*path, name))


HARMLESS = {"fast_failover", "probe", "offsets_history", "session", "by_hand"}
"""Switches of which neither side is less safe."""


def test_the_example_of_a_switch_which_a_fix_writes_is_its_safe_side() -> None:
    switches = list(list_switches(ClusterFile))
    assert {path[-1] for path, _ in switches} == LESS_SAFE.keys() | HARMLESS, (
        "say which side of a new switch is the less safe one"
    )
    for path, example in switches:
        assert path[-1] in HARMLESS or example is not LESS_SAFE[path[-1]], path


@pytest.mark.parametrize(
    ("line", "safe"),
    [
        ("kafka: {conn_id: prod_kafka, verify_hostname: nope}", "`verify_hostname: true`"),
        ("zookeeper: {conn_id: prod_zk, verify_hostname: nope}", "`verify_hostname: true`"),
        ("quorum: {verify_hostname: nope}", "`verify_hostname: true`"),
        ("rehearsal: yes please", "`rehearsal: false`"),
        ("approvers: {users: [eve], not_requester: perhaps}", "`not_requester: true`"),
        ("approvers: {users: [eve], reason: perhaps}", "`reason: true`"),
    ],
)
def test_a_fix_writes_the_safe_side(line: str, safe: str) -> None:
    key = line.partition(":")[0]
    text = said(re.sub(rf"^{key}:.*\n", "", GOOD, flags=re.MULTILINE) + line + "\n")
    assert safe in text.partition("Fix:")[2]


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_file_of_another_encoding_is_to_be_saved_again(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "prod.yaml"
    file.write_bytes(f"# Prüfung\n{GOOD}".encode(encoding))
    with pytest.raises(SpecError, match="save it as UTF-8"):
        load(file)


def test_a_file_that_is_not_there_is_a_matter_of_its_path(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="check the path and its permissions"):
        load(tmp_path / "absent.yaml")
