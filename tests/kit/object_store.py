"""An S3-compatible object store on this machine: moto's server, in an environment of its own, and the jars with which Spark reads `s3a://`."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyarrow.fs import S3FileSystem

from airflow_provider_kmigrate.audit.connector import resolve_pom
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Refused
from tests.kit.environments import make_environment
from tests.kit.ports import closed_port
from tests.waiting import wait_until

_POM: Final = Path(__file__).with_name("objectstore") / "pom.xml"
KEY: Final = "test"  # of both halves of the login; moto asks for none


def resolve_jars() -> list[str]:
    """hadoop-aws and Amazon's library, 690 MB, fetched by Maven once."""
    missing = Refused.because(
        Reason.of(AuditCause.JARS_MISSING, "Spark's jars for S3 are not here, and there is no Maven to fetch them.")
    )
    return sorted(str(path) for path in resolve_pom(_POM, "spark-object-store", missing, print).glob("*.jar"))


def settings(url: str) -> Mapping[str, str]:
    """What a site sets for a store that is not Amazon's; the login is in the environment."""
    return {
        "spark.hadoop.fs.s3a.endpoint": url,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    }


@contextmanager
def run_object_store() -> Iterator[tuple[str, S3FileSystem]]:
    """Starts a store with an empty bucket `lake`; yields its URL and a file system on it."""
    port = closed_port()
    url = f"http://127.0.0.1:{port}"
    argv = [str(make_environment("moto") / "bin" / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port), "the object store answers", 120.0)
        files = S3FileSystem(
            access_key=KEY,
            secret_key=KEY,
            region="us-east-1",
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
            allow_bucket_creation=True,
        )
        files.create_dir("lake")
        yield url, files
    finally:
        server.terminate()
        server.wait(30)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False
