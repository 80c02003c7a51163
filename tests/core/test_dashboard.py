"""The dashboard and the alert rules of docs/metrics.md: they name gauges that are sent, and the rules fire as they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text(encoding="utf-8")
GAUGES = {name.replace(".", "_") for name in re.findall(r"^\| `(kmigrate\.[a-z_]+)`", PAGE, re.MULTILINE)}
(RULES,) = [block for block in re.findall(r"```yml\n(.*?)```", PAGE, re.DOTALL) if "alert:" in block]
SERIES = """
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'kmigrate_phase{cluster="prod"}', values: "5x60"}
      - {series: 'kmigrate_phase{cluster="split"}', values: "-3x60"}
      - {series: 'kmigrate_phase{cluster="done"}', values: "8x60"}
      - {series: 'kmigrate_blocked_by{cluster="prod"}', values: "0x5 2x60"}
      - {series: 'kmigrate_dual_write_lag{cluster="prod"}', values: "51x60"}
      - {series: 'kmigrate_dual_write_lag{cluster="slow"}', values: "50x60"}
      - {series: 'kmigrate_readiness{cluster="prod"}', values: "1x60"}
      - {series: 'kmigrate_readiness{cluster="done"}', values: "0x60"}
      - {series: 'kmigrate_approval_age_seconds{cluster="prod"}', values: "0x10 14300+60x60"}
      - {series: 'kmigrate_approval_age_seconds{cluster="done"}', values: "0x70"}
      - {series: 'kmigrate_probe_ack_seconds{cluster="prod"}', values: "0.1x5 1.5x70"}
      - {series: 'kmigrate_probe_ack_seconds{cluster="slow"}', values: "1x70"}
      - {series: 'kmigrate_group_lag{cluster="prod", group="grows"}', values: "20000+10x100"}
      - {series: 'kmigrate_group_lag{cluster="prod", group="steady"}', values: "20000x100"}
      - {series: 'kmigrate_group_lag{cluster="prod", group="small"}', values: "0+10x100"}
      - {series: 'kmigrate_build_info{cluster="prod", version="0.1.0"}', values: "1x100"}
      - {series: 'kmigrate_build_info{cluster="done", version="0.2.0"}', values: "_x10 1x80"}
    alert_rule_test:
      - {alertname: KmigrateForbiddenState, eval_time: 1m, exp_alerts: [{exp_labels: {cluster: split}}]}
      - {alertname: KmigrateBlocked, eval_time: 20m, exp_alerts: []}
      - {alertname: KmigrateBlocked, eval_time: 22m, exp_alerts: [{exp_labels: {cluster: prod}}]}
      - {alertname: KmigrateDualWriteBehind, eval_time: 4m, exp_alerts: []}
      - {alertname: KmigrateDualWriteBehind, eval_time: 6m, exp_alerts: [{exp_labels: {cluster: prod}}]}
      - {alertname: KmigrateRollbackNotAssured, eval_time: 24m, exp_alerts: []}
      - {alertname: KmigrateRollbackNotAssured, eval_time: 26m, exp_alerts: [{exp_labels: {cluster: prod}}]}
      - {alertname: KmigrateNotObserved, eval_time: 20m, exp_alerts: []}
      - {alertname: KmigrateApprovalWaits, eval_time: 12m, exp_alerts: []}
      - {alertname: KmigrateApprovalWaits, eval_time: 14m, exp_alerts: [{exp_labels: {cluster: prod}}]}
      - {alertname: KmigrateProbeSlow, eval_time: 15m, exp_alerts: []}
      - {alertname: KmigrateProbeSlow, eval_time: 17m, exp_alerts: [{exp_labels: {cluster: prod}}]}
      - {alertname: KmigrateGroupBehind, eval_time: 59m, exp_alerts: []}
      - {alertname: KmigrateGroupBehind, eval_time: 62m, exp_alerts: [{exp_labels: {cluster: prod, group: grows}}]}
      - {alertname: KmigrateVersionsDiffer, eval_time: 69m, exp_alerts: []}
      - {alertname: KmigrateVersionsDiffer, eval_time: 73m, exp_alerts: [{exp_labels: {}}]}
  - interval: 1m
    input_series: [{series: 'kmigrate_phase{cluster="other"}', values: "5x60"}]
    alert_rule_test:
      - {alertname: KmigrateNotObserved, eval_time: 1m, exp_alerts: [{exp_labels: {cluster: prod}}]}
"""


def test_the_dashboard_shows_every_gauge_and_no_other() -> None:
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {re.match("[a-z_]+", query)[0] for query in queries} == GAUGES  # type: ignore[index]
    assert all('{cluster="$cluster"}' in query for query in queries)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(set(places)) == len(queries)


def test_the_alerts_name_gauges_that_are_sent() -> None:
    (group,) = yaml.safe_load(RULES)["groups"]
    assert {name for rule in group["rules"] for name in re.findall("kmigrate_[a-z_]+", rule["expr"])} <= GAUGES


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_each_alert_fires_when_it_says_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    (tmp_path / "tests.yml").write_text(SERIES)
    for words in (["check", "rules", "rules.yml"], ["test", "rules", "tests.yml"]):
        done = subprocess.run(["promtool", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
