"""Gauges as Airflow's own metrics send them: to a collector that speaks OpenTelemetry over HTTP, and to a backend that fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
import yaml
from airflow.sdk.observability import stats

from airflow_provider_kmigrate.core.cluster_state.decision import Wait
from airflow_provider_kmigrate.core.cluster_state.model import ProbeFigures, ProduceLatency, Reason
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.group_seen import GroupPosition, GroupSweep, Lag
from airflow_provider_kmigrate.core.migration.readiness import ReadinessAsk, RollbackPart, judge_rollback
from airflow_provider_kmigrate.core.monitoring.gauges import (
    Gauge,
    GaugeHistory,
    build_gauges,
    group_gauges,
    probe_gauges,
    readiness_gauges,
    request_gauges,
)
from airflow_provider_kmigrate.utils.step_context import make_gauge_exporter
from tests.core.back_views import HYBRID
from tests.provider.metrics_page import PAGE, as_mapped

GAUGES = (Gauge("phase", 5.0), Gauge("brokers", 2.0, {"mode": "kraft"}))


class Recorder:
    """A backend of Airflow's that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, float, dict[str, str]]] = []

    def gauge(self, stat: str, value: float, **named: Any) -> None:
        self.sent.append((stat, value, named.get("tags", {})))


class Broken:
    """A backend that cannot send."""

    def gauge(self, *_: object, **__: object) -> None:
        raise OSError("no route to the collector")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """No other test gets the backends of this one."""
    factory = stats.initialize.__globals__["_factory"]
    yield
    stats.initialize(factory=factory, export_legacy_names=False)


def test_each_gauge_has_the_cluster_as_a_tag_and_in_the_name_of_a_statsd_without_tags() -> None:
    recorder = Recorder()
    stats.initialize(factory=lambda: recorder, export_legacy_names=False)  # type: ignore[arg-type,return-value]
    make_gauge_exporter("prod eu")(GAUGES)
    assert recorder.sent == [
        ("kmigrate.phase.prod_eu", 5.0, {}),
        ("kmigrate.phase", 5.0, {"cluster": "prod eu"}),
        ("kmigrate.brokers.prod_eu.kraft", 2.0, {}),
        ("kmigrate.brokers", 2.0, {"cluster": "prod eu", "mode": "kraft"}),
    ]


def test_a_dot_in_a_groups_name_does_not_make_two_parts_of_a_statsd_name() -> None:
    recorder = Recorder()
    stats.initialize(factory=lambda: recorder, export_legacy_names=False)  # type: ignore[arg-type,return-value]
    make_gauge_exporter("prod.eu")((Gauge("group_lag", 3.0, {"group": "shop.billing"}),))
    assert recorder.sent == [
        ("kmigrate.group_lag.prod_eu.shop_billing", 3.0, {}),
        ("kmigrate.group_lag", 3.0, {"cluster": "prod.eu", "group": "shop.billing"}),
    ]


def test_a_backend_that_cannot_send_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    stats.initialize(factory=Broken, export_legacy_names=False)  # type: ignore[arg-type]
    make_gauge_exporter("prod")(GAUGES)
    assert "no route to the collector" in caplog.text


def test_a_collector_gets_them_by_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    otel = pytest.importorskip("airflow.sdk._shared.observability.metrics.otel_logger")
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"http://127.0.0.1:{server.server_port}/v1/metrics")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        made = otel.get_otel_logger(host="127.0.0.1", port=server.server_port, prefix="airflow", conf_interval=60_000)
        stats.initialize(factory=lambda: made, export_legacy_names=False)
        make_gauge_exporter("prod")(GAUGES)
        otel.flush_otel_metrics()
        server.shutdown()
    said = b"".join(bodies)
    assert said.count(b"airflow.kmigrate.brokers") >= 1
    assert b"prod" in said


def every_gauge() -> tuple[Gauge, ...]:
    """All that kmigrate sends of a cluster in dual-write."""
    _, observed = GaugeHistory().add_view(HYBRID, Wait((Reason("G07", "It lags."),)), 0.0, 60.0)
    position = GroupPosition({TopicPartition("orders", 0): Lag(90, 100)})
    return (
        *observed,
        *readiness_gauges(judge_rollback(HYBRID, ReadinessAsk(), 0.0, restart_seconds=20.0), 0.0),
        *probe_gauges(ProbeFigures(1.0, now={"probe-0": ProduceLatency(10.0, 0.02)})),
        *group_gauges(GroupSweep({"billing": position})),
        *request_gauges([0.0], 7.0),
        *build_gauges("1"),
    )


def test_the_page_has_every_gauge_with_its_tags_and_nothing_else() -> None:
    cells = ([cell.strip() for cell in line.split("|")] for line in PAGE.splitlines() if line.startswith("| `kmigrate."))
    rows = {
        gauge.strip("`").removeprefix("kmigrate."): tags for _, gauge, tags, unit, what, by, _ in cells if unit and what and by
    }
    assert rows.keys() == {gauge.name for gauge in every_gauge()}
    for gauge in every_gauge():
        for tag, value in gauge.tags.items():
            assert f"`{tag}`" in rows[gauge.name]
            assert tag in {"code", "group", "version"} or value in rows[gauge.name]
    assert rows["readiness_part"].endswith(": " + ", ".join(part.name.lower() for part in RollbackPart))


def test_the_mapping_of_the_page_makes_labels_of_every_name_and_mixes_no_clusters() -> None:
    (mappings,) = [
        found["mappings"]
        for block in re.findall(r"```yml\n(.*?)```", PAGE, re.DOTALL)
        if "mappings" in (found := yaml.safe_load(block))
    ]
    recorder = Recorder()
    stats.initialize(factory=lambda: recorder, export_legacy_names=False)  # type: ignore[arg-type,return-value]
    make_gauge_exporter("prod")(every_gauge())
    made = [as_mapped(f"airflow.{name}", mappings) for name, *_ in recorder.sent]
    wanted = [(f"kmigrate_{gauge.name}", {"cluster": "prod", **gauge.tags}) for gauge in every_gauge()]
    assert [each for each in made if each[0] != "dropped"] == wanted
