"""Gauges from Airflow's own logger for StatsD through the page's mapping and rules to a real Prometheus, which fires an alert.

Debian has no StatsD exporter: a small one here does what the page's mapping says, and only that.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from airflow.sdk.observability import stats

from airflow_provider_kmigrate.core.monitoring.gauges import Gauge, request_gauges
from airflow_provider_kmigrate.utils.step_context import make_gauge_exporter
from tests.provider.metrics_page import PAGE, as_mapped
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus"),
]
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yml\n(.*?)```", PAGE, re.DOTALL)]
(MAPPINGS,) = [block["mappings"] for block in BLOCKS if "mappings" in block]
(RULES,) = [block for block in BLOCKS if "groups" in block]


class StatsdExporter:
    """Keeps the last value of each gauge that comes as StatsD's lines over UDP, and shows it to Prometheus by the page's mapping."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        exporter = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = "".join(f"{name} {value}\n" for name, value in sorted(exporter.values.items())).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing on stderr."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        for target in (self.http.serve_forever, self._receive):
            Thread(target=target, daemon=True).start()

    def _receive(self) -> None:
        while line := self.udp.recv(65_535).decode():
            name, value = line.split("|", 1)[0].rsplit(":", 1)
            mapped, labels = as_mapped(name, MAPPINGS)
            if mapped != "dropped":
                self.values[f"{mapped}{{{','.join(f'{key}={json.dumps(text)}' for key, text in labels.items())}}}"] = value

    def close(self) -> None:
        self.http.shutdown()
        self.udp.sendto(b"", self.udp.getsockname())


class UdpClient:
    """The one call of the package statsd that Airflow's logger makes for a gauge: a line over UDP. The package is no dependency here."""

    def __init__(self, host: str, port: int, prefix: str, ipv6: bool) -> None:
        assert not ipv6
        self.address, self.prefix = (host, port), prefix
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def gauge(self, stat: str, value: float, rate: float = 1, delta: bool = False) -> None:
        assert (rate, delta) == (1, False)
        self.socket.sendto(f"{self.prefix}.{stat}:{value}|g".encode(), self.address)


@pytest.fixture
def exporter() -> Iterator[StatsdExporter]:
    made = StatsdExporter()
    factory = stats.initialize.__globals__["_factory"]
    yield made
    stats.initialize(factory=factory, export_legacy_names=False)
    made.close()


@pytest.fixture
def prometheus(tmp_path: Path, exporter: StatsdExporter) -> Iterator[str]:
    """The address of a Prometheus with the page's rules that scrapes the exporter each second."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(RULES))
    target = {"job_name": "kmigrate", "static_configs": [{"targets": [f"127.0.0.1:{exporter.http.server_port}"]}]}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [target],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    words = [
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(["prometheus", *words], stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}/api/v1"
        finally:
            process.terminate()
            process.wait(timeout=30)


def ask(address: str) -> Any:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310  # our own Prometheus
            return json.load(answer)["data"]
    except OSError:
        return {}


@pytest.mark.slow
def test_a_forbidden_state_and_a_request_that_waits_fire_their_alerts(exporter: StatsdExporter, prometheus: str) -> None:
    statsd = pytest.importorskip("airflow.sdk._shared.observability.metrics.statsd_logger")
    host, port = exporter.udp.getsockname()
    logger = statsd.get_statsd_logger(stats_class=UdpClient, host=host, port=port, prefix="airflow")
    stats.initialize(factory=lambda: logger, export_legacy_names=False)
    make_gauge_exporter("prod")(
        (Gauge("phase", -3.0), Gauge("brokers", 2.0, {"mode": "kraft"}), *request_gauges([0.0], 5 * 3600.0))
    )
    make_gauge_exporter("other")((Gauge("phase", 5.0), *request_gauges([0.0], 60.0)))

    def firing() -> set[tuple[str, str]]:
        alerts = ask(f"{prometheus}/alerts").get("alerts", [])
        return {
            (alert["labels"]["alertname"], alert["labels"].get("cluster", "")) for alert in alerts if alert["state"] == "firing"
        }

    expected = {("KmigrateForbiddenState", "prod"), ("KmigrateApprovalWaits", "prod")}
    wait_for(firing, lambda seen: seen == expected, "the alerts of prod and no other", 90.0)
    (series,) = ask(f"{prometheus}/query?query=kmigrate_brokers")["result"]
    assert (series["metric"]["cluster"], series["metric"]["mode"], series["value"][1]) == ("prod", "kraft", "2")
