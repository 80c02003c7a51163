"""A part of the readiness that is taken out."""

from __future__ import annotations

from airflow_provider_kmigrate.core.migration import gates, readiness


def taken_out(monkeypatch, part):
    checks = {**readiness._CHECKS, part: readiness._CHECKS[part]._replace(gate=lambda _view, _ask: gates.MET)}
    monkeypatch.setattr(readiness, "_CHECKS", checks)
