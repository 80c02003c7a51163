"""Quotas on a real broker."""

from __future__ import annotations

from kafka.protocol.admin import AlterClientQuotasRequest

from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec


def alter_quota(node: NodeSpec, entity: dict[str, str | None], key: str, value: float | None) -> None:
    entry = AlterClientQuotasRequest.EntryData
    parts = [entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    change = entry(entity=parts, ops=[entry.OpData(key=key, value=float(value or 0), remove=value is None)])
    with Wire(node.host, node.port, timeout=20.0) as wire:
        (answer,) = wire.ask(AlterClientQuotasRequest, 0, 1, entries=[change], validate_only=False).entries
    assert answer.error_code == 0, answer
