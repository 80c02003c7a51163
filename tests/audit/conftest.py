"""Engines for the audit's tests. Every test module here begins with `importorskip`: only Spark's own environment has the engines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark_session() -> Iterator[Any]:
    """On `KMIGRATE_SPARK_MASTER`, such as `local-cluster[2,1,1024]`; by default in this process. There is one in a process."""
    from airflow_provider_kmigrate.audit import connector  # noqa: PLC0415
    from airflow_provider_kmigrate.audit import session as sessions  # noqa: PLC0415
    from tests.kit import bare_executors, spark_classes  # noqa: PLC0415

    session = sessions.start_session(
        os.environ.get("KMIGRATE_SPARK_MASTER", "local[2]"),
        jars=connector.resolve_kafka_jars(),
        settings=spark_classes.settings() | bare_executors.DAEMON,
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark(spark_session: Any) -> Any:
    from airflow_provider_kmigrate.audit.session import SparkEngine  # noqa: PLC0415

    return SparkEngine(spark_session)


@pytest.fixture(scope="session")
def duck() -> Iterator[Any]:
    from tests.kit.duckdb_engine import DuckDBEngine  # noqa: PLC0415

    with DuckDBEngine(threads=2) as engine:
        yield engine


@pytest.fixture(params=["duck", "spark"])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["duck", pytest.param("spark", marks=pytest.mark.long)])
def duck_or_nightly_spark(request: pytest.FixtureRequest) -> Any:
    """For another case of a query that some test runs on Spark in continuous integration: Spark takes ten seconds for each."""
    return request.getfixturevalue(request.param)
