"""The quick start's own files: the cluster file, whose nodes have `ssh_conn_id`, can be preflighted from a terminal."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from airflow_provider_kmigrate import cli

QUICK_START = Path(__file__).parents[2] / "docs" / "quick-start.md"


@pytest.mark.slow(seconds=30)
def test_the_cluster_file_of_the_quick_start_is_preflighted_from_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", QUICK_START.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "prod.yaml").write_text(re.sub(r"host: (kafka|ctl)", r"host: nobody-\1", textwrap.dedent(block)))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True, timeout=30)
    (shown,) = re.findall(r"```json\n(.*?)```", QUICK_START.read_text(encoding="utf-8"), re.DOTALL)
    shown = shown.replace("/etc/kmigrate/id_ed25519", str(tmp_path / "key"))
    shown = re.sub(r"(zk|kafka)\d:\d+(,(zk|kafka)\d:\d+)*", "127.0.0.1:1", shown)
    (tmp_path / "connections.json").write_text(shown)
    code = cli.main(["preflight", str(tmp_path / "prod.yaml"), "--connections", str(tmp_path / "connections.json"), "-o", "json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert code == 1
    blocking = [finding["code"] for finding in findings if finding["severity"] == "block"]
    assert blocking[:2] == ["U01", "U08"]
    assert "N03" not in blocking
    assert len(blocking) <= 4
