"""Exports gauges through Airflow's own metrics (StatsD or OpenTelemetry, `[metrics]` of airflow.cfg); nothing is sent if they are off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from airflow.sdk.observability import stats

from airflow_provider_kmigrate.core.gauges import Gauge

_log = logging.getLogger(__name__)


def exporter(cluster: str) -> Callable[[Iterable[Gauge]], None]:
    """A function that sends gauges as `kmigrate.<name>`, with the cluster's name among their tags. It never raises.

    A plain StatsD knows no tags and would mix the clusters, so there the values are in a second name:
    `kmigrate.<name>.<cluster>.<value of the tag>`. Airflow sends its own task metrics in both forms, too.
    """

    def export(gauges: Iterable[Gauge]) -> None:
        try:
            for gauge in gauges:
                name = ".".join(("kmigrate", gauge.name, cluster, *gauge.tags.values()))
                stats.gauge(stats.normalize_name_for_stats(name, log_warning=False), gauge.value)
                stats.gauge(f"kmigrate.{gauge.name}", gauge.value, tags={"cluster": cluster, **gauge.tags})
        except Exception as error:  # noqa: BLE001 - of whatever backend: no migration stops for a dashboard
            _log.warning("The metrics of %s were not sent: %s", cluster, error)

    return export
