"""`kmigrate evidence`: what is in the archive, that no secret is, and that it verifies without anything else."""

from __future__ import annotations

import json
import os
import zipfile
from base64 import b64encode
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients import foreign_files
from airflow_provider_kmigrate.commands import evidence, evidence_files
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.backup import BackupStore
from airflow_provider_kmigrate.steps.journal import FileJournal

ID = "q1Sh-9_ISia_zwGINzRvyQ"
CANARY = "hunter22-canary"
KAFKA_SECRET = "kafka-canary-99"
LOGIN_CANARY, USER_CANARY = "login-canary-7", "user-canary-8"
PLAIN_CANARY, STORE_CANARY, QUOTED_CANARY = "plain-canary-1", "store-canary-2", r'quoted\\"canary'
ENDING_CANARY, TOKEN_CANARY, PLUGIN_CANARY = "ending-canary-3", "token-canary-4", "plugin-canary-5"
SPARK_CANARY, SIGNER, PROXY_CANARY = "spark-canary-6", "0123456789abcdef0123", "proxy-canary-7"
FILE = f"""\
name: sim
cluster_id: {ID}
zookeeper: {{conn_id: zk}}
kafka: {{conn_id: kafka}}
hosts: {{driver: agent, properties: /etc/kafka/server.properties, ssh_conn_id: ssh}}
brokers: [{{id: 0, host: kafka0, port: 9092}}]
controllers: [{{id: 3000, host: ctl0, port: 9093, log_dir: /var/lib/kraft}}]
notify: [{{notifier: a.B, arguments: {{to: {CANARY}}}}}]   # comment with {CANARY}
"""
ORIGINAL = f"""\
broker.id=0
listeners=PLAINTEXT://kafka0:9092
zookeeper.connect=zk1:2181
log.dirs=/var/lib/kafka
ssl.keystore.password={CANARY}
config.providers=env
config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider
ssl.key.password=${{env:KEY_PASSWORD}}
ssl.truststore.password=words
zookeeper.ssl.keystore.password={ENDING_CANARY}
delegation.token.master.key={TOKEN_CANARY}
my.plugin.secret={PLUGIN_CANARY}
my.plugin.words=anything at all
my.plugin.proxy=http://kafka:{PROXY_CANARY}@proxy:3128
listener.name.sasl.plain.sasl.jaas.config=a.PlainLoginModule required username="admin" password="{LOGIN_CANARY}" user_bob="{USER_CANARY}" \
  clientSecret={PLAIN_CANARY} storePassword='{STORE_CANARY}' oauth.token="{QUOTED_CANARY}";
"""
AUDIT = "audit: {conn_id: spark, environment: /opt/s, events: [/e], result: /audits}\n"
CONNECTIONS = {
    "zk": {"conn_type": "kmigrate_zookeeper", "host": "zk1:2181"},
    "kafka": {"conn_type": "kafka", "extra": {"bootstrap.servers": "kafka0:9092", "sasl.password": KAFKA_SECRET}},
    "ssh": {"conn_type": "ssh", "login": "kmigrate"},
    "spark": {"conn_type": "spark", "extra": {"spark.auth.token": SPARK_CANARY}},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """kmigrate's folder after a run, beside the cluster file and the exported connections."""
    monkeypatch.chdir(tmp_path)
    Path("sim.yaml").write_text(FILE)
    Path("c.json").write_text(json.dumps(CONNECTIONS))
    Path("key").write_text(f"{SIGNER}\n")
    spec = load("sim.yaml")
    backup = BackupStore(tmp_path / "folder" / "backup", "sim", ID)
    backup.keep_original(spec.brokers[0], ORIGINAL)
    backup.keep_metadata_version("3.9-IV0")
    for run in ("dag/one", "dag/two"):
        name = f"{run.replace('/', '_')}.jsonl"
        journal = FileJournal(tmp_path / "folder" / "journal" / "sim" / name, run, lambda: 100.0)
        journal.begin()
        journal.write("act", "broker 0 to kraft", "restart: it", modes={"0": "migration"})
    pages = tmp_path / "folder" / "preflight" / "sim"
    pages.mkdir(parents=True)
    (pages / "plan.json").write_text("{}")
    return tmp_path / "folder"


def run(*words: str) -> int:
    return evidence.main(["sim.yaml", "-o", "e.zip", "--connections", "c.json", "--folder", "folder", *words])


def test_everything_is_in_it_but_no_secret_and_it_verifies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--key", "key") == 0
    shown = capsys.readouterr().out
    assert "signed" in shown
    assert "Not in it: Audits: the cluster file has no `audit`." in shown
    data = Path("e.zip").read_bytes()
    assert CANARY.encode() not in data
    assert KAFKA_SECRET.encode() not in data
    with zipfile.ZipFile("e.zip") as archive:
        names = archive.namelist()
        before = archive.read("files/broker-0/before.properties").decode()
        after = archive.read("files/broker-0/after.properties").decode()
        timings = json.loads(archive.read("timings.json"))
    assert {"cluster-file.json", "plan/plan.json", "versions.json", "gates.json", "approvals.json", "index.html"} <= set(names)
    assert {"journals/dag_one.jsonl", "journals/dag_two.jsonl", "files/controller-3000/after.properties"} <= set(names)
    assert "zookeeper.connect=zk1:2181" in before
    assert "ssl.keystore.password=" in before
    assert "process.roles=broker" in after
    assert [item["run"] for item in timings["runs"]] == ["dag/one", "dag/two"]
    assert evidence.main(["verify", "e.zip", "--key", "key"]) == 0
    assert "files are as they were written." in capsys.readouterr().out


def test_one_changed_byte_is_refused_by_name_and_ends_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run()
    data = Path("e.zip").read_bytes()
    assert evidence.main(["verify", "e.zip"]) == 0
    assert "It is not signed" in capsys.readouterr().out
    Path("e.zip").write_bytes(data.replace(b"zookeeper.connect=zk1", b"zookeeper.connect=zk2", 1))
    assert evidence.main(["verify", "e.zip", "-o", "json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert "files/broker-0/" in problem


OWNERS = {
    CANARY: "the file of broker 0",
    KAFKA_SECRET: "connection kafka",
    b64encode(f"kmigrate:{KAFKA_SECRET}".encode()).decode(): "connection kafka",
    LOGIN_CANARY: "the file of broker 0",
    USER_CANARY: "the file of broker 0",
    PLAIN_CANARY: "the file of broker 0",
    STORE_CANARY: "the file of broker 0",
    'quoted"canary': "the file of broker 0",
    ENDING_CANARY: "the file of broker 0",  # the file of KRaft has it no more
    TOKEN_CANARY: "the file of broker 0",
    PLUGIN_CANARY: "the file of broker 0",
    PROXY_CANARY: "the file of broker 0",
    SPARK_CANARY: "connection spark",
    SIGNER: "--key",
}


@pytest.mark.parametrize("secret", OWNERS)
def test_a_secret_in_a_journal_stops_it_before_anything_is_written(
    folder: Path, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sim.yaml").write_text(f"{FILE}{AUDIT}")
    with (folder / "journal" / "sim" / "dag_one.jsonl").open("a") as journal:
        journal.write(json.dumps({"kind": "done", "text": f"password {secret}"}) + "\n")
    assert run("--key", "key") == 1
    said = capsys.readouterr().err
    assert f"File journals/dag_one.jsonl holds a secret of {OWNERS[secret]}." in said
    assert secret not in said
    assert not Path("e.zip").exists()


def test_without_a_connection_its_secrets_cannot_be_looked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("sim.yaml").write_text(f"{FILE}{AUDIT}")
    Path("c.json").write_text(json.dumps({name: fields for name, fields in CONNECTIONS.items() if name != "spark"}))
    assert run() == 1
    assert "There is no connection spark, which audit.conn_id in sim.yaml names." in capsys.readouterr().err
    assert not Path("e.zip").exists()


def test_words_and_references_that_kafka_resolves_are_no_secrets(folder: Path) -> None:
    """Short values, those of keys that neither Kafka nor their names call a secret, and `${...}`."""
    with (folder / "journal" / "sim" / "dag_one.jsonl").open("a") as journal:
        journal.write(json.dumps({"kind": "done", "text": "anything at all, words, ${env:KEY_PASSWORD}"}) + "\n")
    assert run() == 0


def test_no_link_and_no_pipe_among_the_audits_is_followed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark's user writes that folder, and the one who packs the evidence may read more."""
    Path("sim.yaml").write_text(FILE + AUDIT.replace("/audits", str(Path("audits").absolute())))
    Path("airflow.cfg").write_text("fernet_key = S3CRET")
    results = Path("audits/sim")
    for name in ("good", "link", "pipe"):
        (results / name).mkdir(parents=True)
    (results / "good" / "verdict.json").write_text("{}")
    (results / "link" / "verdict.json").symlink_to(Path("airflow.cfg").absolute())
    os.mkfifo(results / "pipe" / "verdict.json")
    assert run() == 0
    with zipfile.ZipFile("e.zip") as archive:
        assert [name for name in archive.namelist() if name.startswith("audits/")] == ["audits/good/verdict.json"]
    assert b"S3CRET" not in Path("e.zip").read_bytes()
    said = capsys.readouterr().out
    assert "link/verdict.json is not read: it is a link" in said
    assert "pipe/verdict.json is not read: it is no regular file" in said


def test_audits_that_were_not_looked_at_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("sim.yaml").write_text(FILE + AUDIT.replace("/audits", str(Path("audits").absolute())))
    Path("audits/sim/good").mkdir(parents=True)
    Path("audits/sim/good/verdict.json").write_text("{}")
    monkeypatch.setattr(foreign_files, "MOST_ENTRIES", 1)
    assert run() == 0
    assert "files and folders; the others were not read" in capsys.readouterr().out

    def fail(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(evidence_files, "list_files_below", fail)
    Path("e.zip").unlink()
    assert run() == 0
    assert "could not be listed: Permission denied" in capsys.readouterr().out


def test_only_the_run_that_was_named(folder: Path) -> None:
    assert run("--run", "one") == 0
    with zipfile.ZipFile("e.zip") as archive:
        assert [name for name in archive.namelist() if name.startswith("journals/")] == ["journals/dag_one.jsonl"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--run", "none"], 1, "There is no journal of run none"),
        (["--key", "short"], 1, "16 are the least"),
        (["--key", "absent"], 2, "cannot read absent"),
        (["--connections", "absent.json"], 1, "absent.json"),
    ],
)
def test_a_refusal_writes_nothing(
    folder: Path, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("short").write_text("x" * 15)
    assert run(*words) == code
    assert said in capsys.readouterr().err
    assert not Path("e.zip").exists()


def test_an_archive_that_exists_stays_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("e.zip").write_text("mine")
    Path("c.json").unlink()
    assert run() == 1
    assert "e.zip exists already. Nothing was written." in capsys.readouterr().err
    assert Path("e.zip").read_text() == "mine"


def test_what_does_not_fit_into_memory_is_neither_written_nor_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    monkeypatch.setattr(evidence_files, "MOST_BYTES", 10)
    assert evidence.main(["verify", "e.zip"]) == 2
    assert "larger than any archive" in capsys.readouterr().err
    assert evidence.main(["verify", "/dev/zero"]) == 2, "it says that it has no bytes, and has no end"
    assert "larger than any archive" in capsys.readouterr().err
    size = Path("e.zip").stat().st_size
    Path("e.zip").unlink()
    for most in (10, size - 100):  # the files alone would fit
        monkeypatch.setattr(evidence_files, "MOST_BYTES", most)
        assert run() == 1
        assert "Name one run with --run." in capsys.readouterr().err
        assert not Path("e.zip").exists()


def test_an_archive_that_cannot_be_read_is_2(folder: Path) -> None:
    assert evidence.main(["verify", "absent.zip"]) == 2


def test_what_the_backup_does_not_have_is_said_not_to_be_in_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (folder / "backup").rglob("*"):
        if path.is_file():
            path.unlink()
    assert run() == 0
    assert "Not in it: The file of broker 0, before: " in capsys.readouterr().out
