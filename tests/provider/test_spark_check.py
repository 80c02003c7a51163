"""`kmigrate audit check` and its tasks; Spark is a script here that prints what Spark would, and in one test the real one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.core.audit.spark_check import build_events
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.dag_builders import audit_check
from airflow_provider_kmigrate.dag_builders.audit import check_tasks
from airflow_provider_kmigrate.dag_builders.checks import build_preflight
from airflow_provider_kmigrate.spec import load
from tests.provider.simulated import document
from tests.steps.sim import SimCluster

pytest.importorskip("airflow.providers.apache.spark", reason="the extra `spark` is not installed")

_SPARK = Path(__file__).resolve().parents[2] / ".venv-spark"
_FACTS = {"sources": [{"level": "L3", **balance(build_events()).as_dict()}]}
_PROGRAM = """#!{python}
import json, sys
from pathlib import Path
print({printed!r})
if {code}: sys.exit({code})
folder = Path(sys.argv[-1])
if folder.suffix != ".json": (folder / "facts.json").write_text({facts!r})
else: Path(json.loads(folder.read_text())["logs"]["before"]).write_text("observed")
"""


@pytest.fixture
def spark(tmp_path: Path, connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes an environment whose spark-submit prints something and leaves facts, or fails."""
    monkeypatch.setenv("AIRFLOW__KMIGRATE__FOLDER", str(tmp_path / "kmigrate"))
    connection("spark_here", "spark", host="local[2]")

    def make(printed: str = "", code: int = 0, facts: Any = _FACTS) -> Path:
        home = tmp_path / "environment"
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").symlink_to(sys.executable)
        script = home / "bin" / "spark-submit"
        script.write_text(_PROGRAM.format(python=sys.executable, printed=printed, code=code, facts=json.dumps(facts)))
        script.chmod(0o755)
        return home

    return make


def cluster_file(tmp_path: Path, **audit: Any) -> str:
    values = {"conn_id": "spark_here", "result": str(tmp_path / "result"), "events": ["/events"], "topics": [], **audit}
    path = tmp_path / "sim.yaml"
    path.write_text(yaml.safe_dump({**document(SimCluster()), "audit": values}))
    return str(path)


def check(path: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = audit_check.main(["check", path, "-o", "json"])
    said: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return code, said


def test_a_spark_that_answers_right(tmp_path: Path, spark: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(cluster_file(tmp_path, environment=str(spark())), capsys)
    assert (code, said["fault"], len(said["done"])) == (0, "", 1)
    assert list((tmp_path / "result" / "sim" / "check").iterdir()) == [], "nothing of a check stays"


def test_a_spark_that_answers_wrong(tmp_path: Path, spark: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"sources": [{**_FACTS["sources"][0], "acked": 59}]}
    code, said = check(cluster_file(tmp_path, environment=str(spark(facts=wrong))), capsys)
    assert (code, said["done"], "counts otherwise than the ledger: acked" in said["fault"]) == (1, [], True)


def test_what_the_output_names_is_said(tmp_path: Path, spark: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    home = spark("no verdict: password=S3CRET: No module named 'pyarrow'", code=2)
    code, said = check(cluster_file(tmp_path, environment=str(home)), capsys)
    assert (code, "Missing: python." in said["fault"], "pyarrow" in said["fault"]) == (1, True, True)
    assert "S3CRET" not in said["fault"]


def test_files_that_are_missing_here_are_named_before_spark_starts(
    tmp_path: Path, spark: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    spark()
    (tmp_path / "file").write_text("")
    audit = {
        "environment": "/nowhere",
        "jars": ["/opt/kafka.jar", "s3a://jars/x.jar"],
        "result": str(tmp_path / "file" / "result"),
    }
    code, said = check(cluster_file(tmp_path, **audit, spark={"archives": ["/opt/python.tar.gz#environment"]}), capsys)
    assert code == 1
    for words in ("/nowhere/bin/spark-submit. Missing: python.", "/opt/kafka.jar. Missing: jar.", "/opt/python.tar.gz. Missing: archive.", "Missing: store."):  # fmt: skip
        assert words in said["fault"], words
    assert "s3a" not in said["fault"]


def test_a_driver_that_does_not_share_the_folder(
    tmp_path: Path, spark: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home = spark()
    script = home / "bin" / "spark-submit"
    script.write_text(f"#!{sys.executable}\n")
    code, said = check(cluster_file(tmp_path, environment=str(home)), capsys)
    assert (code, "Missing: store." in said["fault"]) == (1, True)


def test_a_cluster_file_without_audits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sim.yaml"
    path.write_text(yaml.safe_dump(document(SimCluster())))
    assert audit_check.main(["check", str(path)]) == 2
    assert "no section `audit`" in capsys.readouterr().err
    path.write_text("nonsense: 1")
    assert audit_check.main(["check", str(path)]) == 2


def test_the_newest_records_are_read_or_the_store_is_missing(tmp_path: Path, spark: Callable[..., Path]) -> None:
    home = spark()
    _, task = check_tasks(load(Path(cluster_file(tmp_path, environment=str(home), topics=None))))
    task._complete_request = lambda _: task.request  # type: ignore[attr-defined]  # without a connection to Kafka
    logs = task.request["logs"]  # type: ignore[attr-defined]
    assert (logs["sample"], logs["block"], logs["topics"]) == ({"share": 0.0, "tail": 10}, 10, None)
    assert "newest records" in task.execute({})
    assert list((tmp_path / "result" / "sim" / "check").iterdir()) == []
    (home / "bin" / "spark-submit").write_text(f"#!{sys.executable}\n")
    with pytest.raises(AirflowFailException, match="Missing: store"):
        task.execute({})


def test_the_preflight_tries_spark_where_there_are_audits(tmp_path: Path) -> None:
    """Beside the preflight: what blocks the migration keeps nobody from learning that Spark is missing, too."""
    for topics, expected in (
        ([], {"check_spark": set()}),
        (["orders"], {"check_spark": {"check_spark_logs"}, "check_spark_logs": set()}),
    ):
        dag = build_preflight(load(Path(cluster_file(tmp_path, topics=topics))))
        found = {task.task_id: task.downstream_task_ids for task in dag.tasks}
        assert found == {"preflight": set(), **expected}
        assert all(task.doc_md and task.retries == 0 for task in dag.tasks)


@pytest.mark.slow(seconds=40)
@pytest.mark.skipif(not (_SPARK / "bin" / "spark-submit").exists(), reason="Spark's environment is missing: make setup-spark")
def test_a_real_spark(tmp_path: Path, spark: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Also one whose driver has too little memory to start."""
    spark()
    path = cluster_file(tmp_path, environment=str(_SPARK), spark={"driver_memory": "600m"})
    code, said = check(path, capsys)
    assert (code, said["fault"]) == (0, ""), said
    code, said = check(cluster_file(tmp_path, environment=str(_SPARK), spark={"driver_memory": "100m"}), capsys)
    assert (code, "Missing: memory." in said["fault"]) == (1, True), said
