"""A stand-in for the fence, for clients that are tried alone."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.exceptions import Fenced


@dataclass
class Held:
    """A cluster that is held for the first `checks` questions, and by a newer run from then on; `asked`: how many there were."""

    checks: int = 1_000_000
    asked: int = 0
    path: str = "/_kmigrate/epoch"
    token: int = 1

    def check(self) -> None:
        """Raise `Fenced` once a newer run holds the cluster."""
        self.asked += 1
        if self.asked > self.checks:
            raise Fenced.because(Reason("H03", "a newer run holds the cluster"))
