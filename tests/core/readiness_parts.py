"""A part of the readiness that is taken out."""

from __future__ import annotations

from typing import Any

from airflow_provider_kmigrate.core.migration import gates, readiness


def taken_out(monkeypatch: Any, part: Any) -> None:
    checks = {**readiness._CHECKS, part: readiness._CHECKS[part]._replace(gate=lambda _view, _ask: gates.MET)}
    monkeypatch.setattr(readiness, "_CHECKS", checks)
