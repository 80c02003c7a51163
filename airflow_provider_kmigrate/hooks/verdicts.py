"""Verdicts of audits, read from any place that Airflow's object storage reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_kmigrate.hooks.spark_jobs import LIMIT, asked

JUDGED_AT = "kmigrate_judged_at"
"""The XCom key under which a PASS leaves its time, in seconds since the epoch: a later act checks its age."""


def stored(path: str, conn_id: str | None = None, limit: float = LIMIT) -> Mapping[str, Any] | None:
    """The verdict in a file of an audit; None while there is none. A report contains its verdict.

    An incomplete file, on a store that shows such, is none either. Raises `Unavailable` if the store does not answer within
    `limit` seconds.
    """
    try:
        document = json.loads(asked(path, conn_id, lambda place: place.read_bytes(), limit))
    except (FileNotFoundError, ValueError):
        return None
    found = document.get("verdict", document) if isinstance(document, dict) else {}
    return found if isinstance(found, dict) else {}
