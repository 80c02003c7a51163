"""Spark's part of a rehearsal: a user's streaming job all the time, and the audits that the DAGs submit.

All of it runs in Spark's own environment (`make setup-spark`), as processes with small heaps beside the cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut
from tests.kit.localcluster.plan import Plan

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-spark" / "bin" / "python"
_JAVA = "spark.driver.extraJavaOptions"
#: Processes of a minute or three beside a cluster on two cores: what a better compiler and collector would save, they would cost.
_SETTINGS = {
    "spark.driver.memory": "1g",
    _JAVA: "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
}
_POLL_S = 0.2


class SparkSide:
    """Lives in `folder`, which is emptied first. Raises `Refused` where Spark's environment is missing."""

    def __init__(self, folder: Path, topics: Sequence[str]) -> None:
        if not PYTHON.exists():
            raise Refused(f"Spark's own environment is not there ({PYTHON}): make setup-spark")
        self.folder, self._topics = folder.absolute(), tuple(topics)
        self.bootstrap = ""  # where the brokers are, as soon as they are
        shutil.rmtree(self.folder, ignore_errors=True)  # of the run before
        self.folder.mkdir(parents=True)
        self._stream: subprocess.Popen[bytes] | None = None

    @cached_property
    def _jars(self) -> list[str]:
        return self._run("airflow_provider_kmigrate.audit.connector").split()

    @cached_property
    def _settings(self) -> dict[str, str]:
        """`_SETTINGS` with the class archive, from which a driver starts in half the time."""
        return {**_SETTINGS, _JAVA: f"{_SETTINGS[_JAVA]} {self._run('tests.kit.spark_classes').strip()}"}

    @property
    def streamed(self) -> str:
        """The topic that the streaming job reads: one, because each of its partitions costs a reader beside the cluster."""
        return self._topics[0]

    def start_stream(self) -> None:
        """Start the streaming job, from the topic's beginning."""
        words = [f"--topic={self.streamed}", *(f"--conf={name}={value}" for name, value in self._settings.items())]
        words += [
            "--bootstrap",
            self.bootstrap,
            "--folder",
            str(self._job),
            "--jars",
            ",".join(self._jars),
        ]
        self._stream = self._spawn("tests.kit.spark_job", *words)

    def wait_streaming(self, timeout: float = 90.0) -> None:
        """Until its first batch is in the sink."""
        deadline = time.monotonic() + timeout
        while not (self._job / "checkpoint" / "commits" / "0").exists():
            if self._stream is None or self._stream.poll() is not None:
                raise Failed(f"the streaming job ended; its log: {self._log('spark_job')}")
            if time.monotonic() > deadline:
                raise TimedOut(f"the streaming job had no batch within {timeout:g} s; its log: {self._log('spark_job')}")
            time.sleep(_POLL_S)

    def ask(self, plan: Plan, events: Path, topics: Sequence[str] | None = None, **policy: object) -> None:
        """Write the audit and the streaming job into the cluster file.

        `events`: folder of the clients' events. `topics` whose whole logs are compared; None: the newest records of every topic.
        """
        document = yaml.safe_load(plan.spec_path.read_text())
        audit = {"conn_id": "spark_here", "environment": str(PYTHON.parent.parent), "result": str(self.result)}
        audit |= {"events": [str(events.absolute())], "level": "producers", "jars": self._jars, "retry_delay": "10s", **policy}
        audit["spark"] = {"properties": {"spark.ui.enabled": "false"}}  # nobody looks at it, and it takes a second of each driver
        document["audit"] = audit if topics is None else audit | {"topics": list(topics)}
        job = {"name": "sink", "checkpoint": str(self._job / "checkpoint"), "topics": [self.streamed], "hold": "always"}
        document["spark_jobs"] = [job]
        plan.spec_path.write_text(yaml.safe_dump(document, sort_keys=False))

    @staticmethod
    def connect(plan: Plan) -> None:
        """Write Spark's connection beside the others, before the Airflow that reads them starts."""
        known = json.loads(plan.connections_path.read_text())
        known["spark_here"] = {"conn_type": "spark", "host": "local[2]"}
        plan.connections_path.write_text(json.dumps(known))

    @cached_property
    def submit_options(self) -> dict[str, str]:
        """Environment of an Airflow whose Spark drivers are to start as fast as this one's."""
        return {"SPARK_SUBMIT_OPTS": self._settings[_JAVA]}

    def verdict(self, cluster: str, step: str) -> dict[str, Any]:
        """What the audit of a step said last; raises `Failed` if there is none."""
        verdicts = sorted((self.result / cluster / step).glob("*/verdict.json"), key=lambda path: path.stat().st_mtime)
        if not verdicts:
            raise Failed(f"Spark gave no verdict on {step}: {self.result}")
        return {**json.loads(verdicts[-1].read_text()), "report": str(verdicts[-1].parent / "report.html")}

    def end_stream(self, timeout: float = 90.0) -> dict[str, int]:
        """Let the streaming job take in the rest and count its sink."""
        if self._stream is None:
            raise Failed("the streaming job was not started")
        self._stream.terminate()
        self._ended(self._stream, "the streaming job", "example", timeout)
        found: dict[str, int] = json.loads((self._job / "sink.json").read_text())
        return found

    def close(self) -> None:
        """Nothing of it runs afterwards."""
        if self._stream is not None and self._stream.poll() is None:
            os.killpg(self._stream.pid, 9)
            self._stream.wait(10)

    @property
    def result(self) -> Path:
        """Of all audits."""
        return self.folder / "audit"

    @property
    def _job(self) -> Path:
        return self.folder / "stream"

    def _ended(self, process: subprocess.Popen[bytes], what: str, name: str, timeout: float) -> None:
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimedOut(f"{what} did not end within {timeout:g} s; its log: {self._log(name)}") from None
        if code != 0:
            raise Failed(f"{what} failed (exit code {code}); its log: {self._log(name)}")

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _run(self, module: str, *words: str, timeout: float = 300.0) -> str:
        name = module.rpartition(".")[2]
        with self._log(name).open("wb") as log:
            try:
                done = subprocess.run(
                    [PYTHON, "-m", module, *words],
                    check=False,
                    cwd=ROOT,
                    env=_environment(),
                    stdout=subprocess.PIPE,
                    stderr=log,
                    timeout=timeout,
                )
            except subprocess.TimeoutExpired:
                raise TimedOut(f"{module} did not end within {timeout:g} s; its log: {self._log(name)}") from None
        if done.returncode != 0:
            raise Failed(f"{module} failed: {self._log(name).read_text().strip()[-1000:]}")
        return done.stdout.decode()

    def _spawn(self, module: str, *words: str) -> subprocess.Popen[bytes]:
        with self._log(module.rpartition(".")[2]).open("wb") as log:
            return subprocess.Popen(
                [PYTHON, "-m", module, *words], cwd=ROOT, env=_environment(), stdout=log, stderr=log, start_new_session=True
            )


def _environment() -> dict[str, str]:
    """Neither another Spark nor Airflow's Python gets in its way."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(PYTHON)}
