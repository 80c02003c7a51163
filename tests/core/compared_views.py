"""Observations that compared both sides: alike, different, not at all."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Stored, StoredKind

NOTHING = {kind: Stored({}) for kind in StoredKind}
EQUAL = ClusterView(0.0, topics=({}, {}), stored=NOTHING)
DIFFERENT = replace(EQUAL, stored={**NOTHING, StoredKind.QUOTAS: Stored({"user a": {"producer_byte_rate": "1"}})})
