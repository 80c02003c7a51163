"""Levels of evidence that are whole."""

from __future__ import annotations

from airflow_provider_kmigrate.core.audit.verdict import Level, LevelHealth

HEALTHY = (LevelHealth(Level.LOG, events=50), LevelHealth(Level.PROBE, events=50))
