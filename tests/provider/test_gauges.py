"""Gauges as Airflow's own metrics send them: to a collector that speaks OpenTelemetry over HTTP, and to a backend that fails."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from airflow.sdk.observability import stats

from airflow_provider_kmigrate.core.gauges import Gauge
from airflow_provider_kmigrate.hooks.gauges import exporter

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
    exporter("prod eu")(GAUGES)
    assert recorder.sent == [
        ("kmigrate.phase.prod_eu", 5.0, {}),
        ("kmigrate.phase", 5.0, {"cluster": "prod eu"}),
        ("kmigrate.brokers.prod_eu.kraft", 2.0, {}),
        ("kmigrate.brokers", 2.0, {"cluster": "prod eu", "mode": "kraft"}),
    ]


def test_a_backend_that_cannot_send_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    stats.initialize(factory=Broken, export_legacy_names=False)  # type: ignore[arg-type]
    exporter("prod")(GAUGES)
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
        exporter("prod")(GAUGES)
        otel.flush_otel_metrics()
        server.shutdown()
    said = b"".join(bodies)
    assert said.count(b"airflow.kmigrate.brokers") >= 1
    assert b"prod" in said
