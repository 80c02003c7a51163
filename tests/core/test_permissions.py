"""The rights of kmigrate's user: what the guide says, as commands that Kafka's own tool takes."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate import cli
from airflow_provider_kmigrate.core.cluster_state.spec import AuditSpec
from airflow_provider_kmigrate.core.preflight.permissions import list_permissions, render_commands
from tests.core.preflight_views import healthy

SPEC = healthy(3)[1].spec
GUIDE = (Path(__file__).parents[2] / "docs" / "operators-guide.md").read_text(encoding="utf-8")
FILE = """\
name: prod
cluster_id: q1Sh-9_ISia_zwGINzRvyQ
zookeeper: {conn_id: z}
kafka: {conn_id: k}
hosts: {driver: agent, properties: /etc/kafka/server.properties, ssh_conn_id: s}
brokers: [{id: 0, host: kafka0, port: 9092}]
controllers: [{id: 3000, host: ctl0, port: 9093, log_dir: /var/lib/kraft}]
"""


def test_only_what_the_cluster_file_asks_for_is_granted() -> None:
    plain = {(row.resource, row.name) for row in list_permissions(SPEC)}
    assert ("topic", "kmigrate-probe") not in plain
    probed = replace(SPEC, audit=AuditSpec("spark", "/r"))
    assert ("topic", "kmigrate-probe") in {(row.resource, row.name) for row in list_permissions(probed)}
    operations = {operation for row in list_permissions(SPEC) for operation in row.operations}
    assert not operations & {"WRITE", "DELETE", "CREATE", "ALL", "ALTER_CONFIGS", "CLUSTER_ACTION"}, "it only observes and elects"
    assert "DELETE" in {operation for row in list_permissions(SPEC, expansion=True) for operation in row.operations}


def test_the_guide_names_each_operation() -> None:
    (user,) = re.findall(r"^\| Kafka user \|.*$", GUIDE, re.MULTILINE)
    always, expansion = user.split("To expand `__consumer_offsets`")
    assert set(re.findall(r"\b[A-Z_]{4,}\b", always)) - {"PLAIN", "SCRAM", "OAUTHBEARER"} == {
        operation for row in list_permissions(SPEC) for operation in row.operations
    }
    added = set(list_permissions(SPEC, expansion=True)) - set(list_permissions(SPEC))
    assert set(re.findall(r"\b[A-Z_]{4,}\b", expansion)) == {operation for row in added for operation in row.operations}


@pytest.mark.parametrize("principal", ["User:kmigrate", "User:CN=k m,OU=x", "User:'; rm -rf /"])
def test_a_command_is_one_of_kafkas_tool_whatever_the_names(principal: str) -> None:
    for line in render_commands(list_permissions(SPEC, expansion=True), principal, "kafka0:9092"):
        words = shlex.split(line)
        assert words[0] == "kafka-acls.sh"
        assert words[words.index("--allow-principal") + 1] == principal
        assert "\n" not in line


def test_the_command_grants_nothing_and_reads_the_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prod.yaml"
    file.write_text(FILE)
    assert cli.main(["permissions", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "--operation DescribeConfigs" in shown
    assert "super.users" in shown
    assert cli.main(["permissions", str(file), "-o", "json"]) == 0
    assert {row["resource"] for row in json.loads(capsys.readouterr().out)} == {
        "cluster", "topic", "group", "delegation token", "transactional id",
    }  # fmt: skip
    assert cli.main(["permissions", str(tmp_path / "none.yaml")]) == 2
