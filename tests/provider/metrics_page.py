"""docs/metrics.md as tests read it: its text, and its mapping for a StatsD exporter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def as_mapped(name: str, mappings: list[dict[str, Any]]) -> tuple[str, dict[str, str]]:
    """As statsd_exporter maps by globs: the first match counts, and a star is one part of the name."""
    for rule in mappings:
        match = re.fullmatch(re.escape(rule["match"]).replace(r"\*", r"([^.]+)"), name)
        if match is not None:
            labels = {key: match.expand(text.replace("$", "\\")) for key, text in rule.get("labels", {}).items()}
            return match.expand(rule["name"].replace("$", "\\")), labels
    raise AssertionError(f"{name} is not mapped")
