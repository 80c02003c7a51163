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


@pytest.mark.parametrize(
    "release",
    ["3.9.2", "2.8.1", "4.0.0", "7.9.2", "7.9.2-ccs", "7.9.2-ce", "cp-7.9.2", "3.7.0.redhat-00007", "3.4.1.7.1.9.0-387"],
)
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
    with pytest.raises(SpecError, match="and not the name of a cluster"):
        load(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("wrong", "right", "line", "found", "fix"),
    [
        ("kafka: {conn_id", "kafka:\u00a0{conn_id", 4, "U+00A0 (no-break space) in line 4", "type the blanks"),
        ("hosts: {driver", "hosts: {\u2003driver", 5, "U+2003 (em space) in line 5", "type the blanks"),
        ("name: prod", "name: {{ cluster }}", 1, "text that is not YAML", "write the value itself: the file is no template"),
    ],
)
def test_what_no_reader_sees_in_a_text_is_named(wrong: str, right: str, line: int, found: str, fix: str) -> None:
    """With a blank that is none YAML finds a syntax error elsewhere, or an unknown key: one cause, one problem."""
    _, problem = said(GOOD.replace(wrong, right)).splitlines()
    assert f":{line}: found {found}" in problem
    assert fix in problem.partition("Fix:")[2]


def test_an_odd_blank_in_a_comment_or_in_a_valid_file_is_no_problem() -> None:
    assert loads(f"{GOOD}# 10\u00a0brokers\nlater_groups: ['a\u00a0b']\n").later_groups == ("a\u00a0b",)


def test_a_key_that_its_own_section_has_too_is_one_too_many() -> None:
    text = said(f"{GOOD}policy: {{min_soak: 24h}}\nmin_soak: 14d\n")
    assert "Fix: remove it, or the one in `policy`" in text


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("ssh -tt {host} sudo -n kmigrate-node serve", "`-tt`"),
        ("/usr/bin/ssh -p 22 -T -vtt {host} kmigrate-node serve", "`-vtt`"),
        ("ssh -o RequestTTY=force {host} kmigrate-node serve", "`-o RequestTTY=force`"),
        ("ssh -oRequestTTY=force {host} kmigrate-node serve", "`-oRequestTTY=force`"),
        ("ssh -t {host} kmigrate-node serve", ""),  # without a terminal of its own ssh asks for none
        ("ssh -F /etc/tt -l tt {host} run -tt kmigrate-node serve", ""),
        ("run -tt {host}", ""),
    ],
)
def test_a_terminal_for_the_agent_is_refused(command: str, option: str) -> None:
    text = re.sub("ssh_conn_id: prod_ssh", f"connect: {command!r}", GOOD)
    assert (option in said(text)) if option else loads(text)
