"""One entry of the runbook, and one letter's area."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_kmigrate.core.reasons.causes import AuditCause

_SHORT = 240  # characters of a step that a log line still shows


@dataclass(frozen=True, slots=True)
class RunbookEntry:
    """What a code means and what to do about it; Markdown, for an operator at 3 a.m. who reads a second language.

    `means` is printed after what was observed in a log line, and `do[0]` as the next step. `meanwhile`: whether the cluster may stay
    like this until the morning, and why. `source`: a KIP, a ticket, Kafka's code or a measurement that a check rests on. `ask`: how to
    find out what a check could not see. `causes`: the findings of the audit that have this remedy.
    """

    code: str
    title: str
    means: str
    meanwhile: str
    do: tuple[str, ...]
    never: str
    source: str = ""
    ask: str = ""
    causes: tuple[AuditCause, ...] = ()

    @property
    def remedy(self) -> str:
        """The next step for a log line, and where the others are."""
        first, *others = self.do
        if len(first) > _SHORT:
            return f"see {self.code} in the runbook."
        return f"{first} More: {self.code} in the runbook." if others else first

    def markdown(self) -> str:
        """The entry as the runbook has it, with its heading and an anchor that a new title does not move."""
        numbered = "".join(f"{number}. {step}\n" for number, step in enumerate(self.do, 1))
        steps = f"\n\n{numbered}\n" if len(self.do) > 1 else f" {self.do[0]}\n"
        return (
            f'<a id="{self.code.lower()}"></a>\n\n### {self.code} {self.title}\n\n**Means.** {self.means}\n'
            f"**Safe meanwhile.** {self.meanwhile}\n**Do.**{steps}**Never.** {self.never}\n"
        )


@dataclass(frozen=True, slots=True)
class Area:
    """The codes of one letter: what they are about, when they appear, and what is true of all of them."""

    letter: str
    title: str
    about: str
    when: str
    intro: str = ""

    @property
    def anchor(self) -> str:
        return f"{self.letter}-codes".lower()

    def markdown(self) -> str:
        intro = f"\n{self.intro}\n" if self.intro else ""
        return f'<a id="{self.anchor}"></a>\n\n## {self.letter}: {self.title}\n{intro}'
