"""A subscription to client metrics on a real broker."""

from __future__ import annotations

from kafka.protocol.admin import IncrementalAlterConfigsRequest

from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec


def subscribe(broker: NodeSpec, interval: str | None) -> None:
    """A subscription to client metrics; without an interval it is deleted."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    setting = resource.AlterableConfig(name="interval.ms", config_operation=1 if interval is None else 0, value=interval)
    wanted = [resource(resource_type=16, resource_name="sub", configs=[setting])]
    with Wire(broker.host, broker.port, timeout=20.0) as wire:
        (answer,) = wire.ask(IncrementalAlterConfigsRequest, 0, 1, resources=wanted, validate_only=False).responses
    assert answer.error_code == 0, answer
