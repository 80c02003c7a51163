"""Property files of strangers meet no wrong block, and those that no ZooKeeper-mode broker could run with meet one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.preflight.checks import run_checks
from tests.core.door_files import FILES, cluster_with, judge_file, read_plain, right_blocks

ALL = sorted(FILES.glob("*.properties"))
TEMPLATES = {"f16.properties"}  # `<host>` where a name must be: B15 finds that its broker does not run with it


def test_the_corpus_is_whole() -> None:
    assert len(ALL) == 59


@pytest.mark.parametrize("file", ALL, ids=lambda file: file.stem)
def test_a_file_of_strangers_meets_no_wrong_block(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    judged = judge_file(file.name, text)
    assert not judged.wrong, "\n".join(map(str, judged.wrong))
    if right_blocks(read_plain(text)) is None and file.name not in TEMPLATES:
        assert judged.blocks, "no broker could run with this file in ZooKeeper mode"


def test_a_wrong_block_would_be_counted() -> None:
    text = "broker.id=1\nzookeeper.connect=zk1:2181\nlog.dirs=/data\nmetadata.log.dir=/data\ninter.broker.protocol.version=2.1\n"
    judged = judge_file("x", text)
    assert judged.blocks
    assert not judged.wrong
    judged = judge_file("y", text.replace("inter.broker.protocol.version=2.1", "controller.listener.names=CONTROLLER"))
    assert judged.wrong


CONTROL_PLANES = [file for file in ALL if "control.plane.listener.name=CONTROLLER" in file.read_text(encoding="utf-8")]


def test_a_brokers_listener_of_the_controllers_name_needs_another_name_in_the_cluster_file_alone() -> None:
    assert len(CONTROL_PLANES) == 2
    for file in CONTROL_PLANES:
        view, facts = cluster_with(file.read_text(encoding="utf-8"))
        found = [finding.reason for finding in run_checks(view, facts) if finding.code in {"B9e", "C04"}]
        assert {reason.code for reason in found} == {"C04"}, "B9e asks for a protocol, with which the names are the same still"
        assert all("`quorum.listener` in the cluster file" in reason.text for reason in found)
        renamed = replace(facts, spec=replace(facts.spec, controller_listener="KRAFT"))
        assert not [finding for finding in run_checks(view, renamed) if finding.code in {"B9e", "C04"}]
