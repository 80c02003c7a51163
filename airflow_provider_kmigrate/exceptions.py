"""Every error the package raises on purpose; each class says what the caller may do.

`Unavailable`: try again; `Refused`, `AuthenticationFailed` and `Failed`: stop. Refusals that a plan can foresee are values
(`core.cluster_state.decision.Refuse`), not exceptions; `Refused` carries them across I/O code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from airflow_provider_kmigrate.core.shared.text import indent_further_lines
from airflow_provider_kmigrate.masking import mask

if TYPE_CHECKING:
    from airflow_provider_kmigrate.core.cluster_state.model import Reason


class KMigrateError(Exception):
    """Root of the tree; never raised itself. `reasons`: what was seen, why it matters and what to do, if that is known.

    The text may quote others: it moves no terminal's cursor, forges no line and has no secret of a connection.
    """

    retriable = False

    def __init__(self, text: str, reasons: Iterable[Reason] = ()) -> None:
        super().__init__(indent_further_lines(mask(text)))
        self.reasons = tuple(replace(reason, text=mask(reason.text)) for reason in reasons)

    @classmethod
    def because(cls, *reasons: Reason) -> Self:
        """The error whose text is its reasons themselves."""
        return cls(" | ".join(map(str, reasons)), reasons)


class Unavailable(KMigrateError):
    """The other side gave no usable answer, nothing is known; observe again before acting."""

    retriable = True


class Unreachable(Unavailable):
    """No connection, or it broke; whether a write arrived is unknown."""


class TimedOut(Unavailable):
    """No answer within the deadline; the text names the deadline and what was waited for."""


class Refused(KMigrateError):
    """Continuing would be wrong, and nothing was changed."""


class SpecError(Refused):
    """The cluster file is wrong; the text names file, line and the fix."""


class WrongCluster(Refused):
    """The cluster that answered is not the one that the cluster file names."""


class Fenced(Refused):
    """A newer run owns this cluster; this one must end."""


class Forbidden(Refused):
    """Not on the allow-list of things kmigrate may change."""


class AuthenticationFailed(KMigrateError):
    """The other side does not accept our identity, or denies it the right; no retry helps."""


class Failed(KMigrateError):
    """An act failed; the text says what was seen and where to read more."""
