"""The audit's verdict: PASS, FAIL or INCONCLUSIVE, by which evidence, and why.

The rule: a verdict is the worst of its grounds, and having no evidence is itself a ground. From it follow the properties that the
callers rely on:

1. Nothing read is never PASS: a level without events is INCONCLUSIVE.
2. Lost audit events are never lost records: what was concluded from *not observing* a delivery counts only if the audit's own
   account is whole; inside its holes the range is INCONCLUSIVE.
3. What was *observed* (two owners, two contents at one offset) stays a FAIL whatever else is missing.
4. More grounds never make a verdict better.

Stored verdicts carry `VERSION`; `outcome_of` refuses one it does not know by name. Standard library only: sensors import this.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.ledger.facts import Case, Facts, LedgerFinding
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import Count, count_of, summarize
from airflow_provider_kmigrate.exceptions import Refused

VERSION = 3


class AuditOutcome(StrEnum):
    """The outcome of an audit. INCONCLUSIVE asks for more evidence or a decision; it is not a milder PASS."""

    PASS = "PASS"  # noqa: S105 (a word, no password)
    INCONCLUSIVE = "INCONCLUSIVE"
    FAIL = "FAIL"

    @property
    def rank(self) -> int:
        """Severity, to take the worst of several: 0 for PASS, 2 for FAIL."""
        return _SEVERITY.index(self)


_SEVERITY = (AuditOutcome.PASS, AuditOutcome.INCONCLUSIVE, AuditOutcome.FAIL)


class Level(IntEnum):
    """The level of evidence. The numbers stand in stored verdicts: never renumber."""

    LOG = 0  # nothing changed in any client: fingerprints, end offsets, leader epochs, commits
    PROBE = 1  # kmigrate's own numbered records through every broker
    CONSUMER = 2  # wrapped consumers: every delivery
    PRODUCER = 3  # wrapped producers: every acknowledgement

    @property
    def label(self) -> str:
        """Its name in texts and reports, such as L0."""
        return f"L{self.value}"


DEFAULT_LEVELS = frozenset({Level.LOG, Level.PROBE})  # those that need no change in any client
# Each claim says only what was shown. Newest records may still be on their way if clients run on. A delivery shows an offset, and
# which record was there only if clients number records. For producers without events, no record is known to be due.
CLAIMS: Mapping[Level, str] = {
    Level.LOG: "what was compared of the logs is still there and unchanged, and no committed offset went back",
    Level.PROBE: "every numbered probe record that a broker had acknowledged, but for the newest, was delivered once and in order",
    Level.CONSUMER: "every offset that wrapped producers had acknowledged, but for the newest, was delivered to its groups, and no partition was "
    "observed with two owners",
    Level.PRODUCER: "every offset that wrapped producers had acknowledged, but for the newest, holds a record, and no other one as far as clients "
    "number them",
}


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One finding, and what it alone makes of the verdict (`outcome`; PASS: a fact worth showing).

    `count` is how many there are, `examples` the first few of them.
    """

    outcome: AuditOutcome
    reason: Reason
    level: Level | None = None
    count: int = 1
    examples: tuple[Case, ...] = ()

    @classmethod
    def of(  # noqa: PLR0917  # in the order of the fields
        cls,
        outcome: AuditOutcome,
        cause: AuditCause,
        text: str,
        level: Level | None = None,
        count: int = 1,
        examples: tuple[Case, ...] = (),
    ) -> AuditFinding:
        """The finding whose reason is this cause with its text."""
        return cls(outcome, Reason.of(cause, text), level, count, examples)


@dataclass(frozen=True, slots=True)
class LevelHealth:
    """How complete the audit's own account is at one level.

    `events`: how many were read. `malformed`: unreadable events, kept aside. `owner_changes`: changes of owner observed. `includes`:
    lower levels that the same events prove, so that findings speak against them too. Holes in the events are the ledger's reasons.
    """

    level: Level
    events: int
    malformed: int = 0
    owner_changes: int = 0
    includes: tuple[Level, ...] = ()


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """The comparison of a group's canary with the other members; the numbers are factors, canary / others, None if not computed.

    `measured` of `window` intervals have passed since the change; nothing is compared before all have. `low` and `high`:
    one-sided 95 % bounds. `smallest`: the smallest true effect that would have failed the comparison with a probability of 80 %.
    """

    outcome: AuditOutcome
    metric: str
    margin: float  # up to which factor a delay is accepted
    window: int
    measured: int
    baseline: int = 0  # members that the canary is compared with
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    smallest: float | None = None
    p_value: float | None = None
    findings: tuple[AuditFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The verdict. `levels`: what each measured level alone says; unmeasured ones are missing. `findings`: worst first."""

    outcome: AuditOutcome
    levels: Mapping[Level, AuditOutcome] = field(default_factory=dict)
    findings: tuple[AuditFinding, ...] = ()
    canary: CanaryVerdict | None = None

    @property
    def proven(self) -> tuple[Level, ...]:
        """Levels whose claim (`CLAIMS`) holds without a reservation."""
        return tuple(level for level, outcome in sorted(self.levels.items()) if outcome is AuditOutcome.PASS)

    @property
    def unmeasured(self) -> tuple[Level, ...]:
        """Levels without evidence although they need no change in any client."""
        return tuple(sorted(DEFAULT_LEVELS - self.levels.keys()))

    @property
    def headline(self) -> str:
        """One sentence for the operator: the outcome, and the worst ground or what was shown."""
        if self.outcome is not AuditOutcome.PASS:
            return f"{self.outcome}: {self.findings[0].reason if self.findings else 'no evidence of any kind was given.'}"
        shown = [f"{level.label} {CLAIMS[level]}" for level in self.proven] or [
            finding.reason.text.removesuffix(".") for finding in self.findings[:1]
        ]
        shown += ["the canary is no worse than the margin allows"] if self.canary else []
        shown += [f"not measured: {' and '.join(level.label for level in self.unmeasured)}"] if self.unmeasured else []
        return f"{self.outcome}: {'; '.join(shown)}."


def worst_outcome(outcomes: Iterable[AuditOutcome]) -> AuditOutcome:
    """The most severe outcome; INCONCLUSIVE if there is none."""
    return max(outcomes, key=lambda outcome: outcome.rank, default=AuditOutcome.INCONCLUSIVE)


def combine(findings: Iterable[AuditFinding], health: Iterable[LevelHealth], canary: CanaryVerdict | None = None) -> AuditVerdict:
    """The verdict over all findings; `health` says which levels were measured.

    A canary's verdict counts as a ground; None means that none was asked for.
    """
    accounts = tuple(health)
    grounds = [*findings, *(finding for account in accounts for finding in _check_completeness(account))]
    levels = {level: _outcome_at(measuring, grounds) for level, measuring in _levels_with_evidence(accounts).items()}
    everything = dict.fromkeys([*grounds, *(canary.findings if canary else ())])
    outcomes = [*(finding.outcome for finding in everything), *levels.values(), *([canary.outcome] if canary else [])]
    return AuditVerdict(worst_outcome(outcomes), levels, tuple(sorted(everything, key=_severity_key)), canary)


BEFORE_THE_STEP: Final = "Before the step began, so not caused by it: "
VIOLATIONS: Mapping[str, tuple[AuditCause, str]] = {
    "lost": (AuditCause.LOST, "{:acknowledged record was|acknowledged records were} lost."),
    "diverged": (AuditCause.DIVERGED, "{:record shares|records share} an offset with a different record."),
    "stored_twice": (AuditCause.STORED_TWICE, "{:record is|records are} in the log twice."),
    "commit_gap": (AuditCause.COMMIT_GAP, "{:record was|records were} committed before they were delivered."),
    "redelivered": (AuditCause.REDELIVERED, "{:record was|records were} delivered to their group again."),
    "reordered": (AuditCause.REORDERED, "{:record} came after a later record of their partition."),
    "double_owned": (AuditCause.DOUBLE_OWNED, "Partitions had two owners in one group for {} ms in total."),
}


def findings_from_facts(facts: Facts, level: Level, allow: Collection[str] = ()) -> tuple[tuple[AuditFinding, ...], LevelHealth]:
    """A ledger's facts as `combine` takes them, with what is worth showing and fails nothing.

    The ledger has already judged absences: nothing is invalidated again.

    `allow`: names of findings that are shown and do not fail.
    """
    now, then = facts.violations, facts.earlier
    broken = [
        _violation_finding(AuditOutcome.PASS if name in allow else AuditOutcome.FAIL, name, now[name], level)
        for name in VIOLATIONS
        if name in now
    ]
    earlier = [
        _violation_finding(AuditOutcome.PASS, name, then[name], level, before=BEFORE_THE_STEP)
        for name in VIOLATIONS
        if name in then
    ]
    doubts = [AuditFinding(AuditOutcome.INCONCLUSIVE, reason, level) for reason in facts.reasons]
    includes = (Level.CONSUMER,) if level is Level.PRODUCER and facts.delivered else ()  # the same events prove it
    events = facts.acked + sum(facts.delivered.values())
    health = LevelHealth(level, events, owner_changes=facts.owner_changes, includes=includes)
    return (*broken, *earlier, *_check_not_owned(facts, level), *doubts, *_list_notes(facts, level)), health


def _violation_finding(
    outcome: AuditOutcome, name: str, violation: LedgerFinding, level: Level, *, before: str = ""
) -> AuditFinding:
    """`before`: the beginning of the sentence."""
    cause, text = VIOLATIONS[name]
    return AuditFinding.of(outcome, cause, before + text.format(Count(violation.count)), level, violation.count, violation.cases)


def _check_not_owned(facts: Facts, level: Level) -> Iterator[AuditFinding]:
    """Deliveries outside their member's own intervals. A gap in the events may hide the acquisition."""
    earlier = facts.earlier.get("not_owned", LedgerFinding())
    now = AuditOutcome.FAIL if facts.recorded else AuditOutcome.INCONCLUSIVE
    for deliveries, outcome, before in ((earlier, AuditOutcome.PASS, BEFORE_THE_STEP), (facts.not_owned, now, "")):
        if deliveries.count:
            text = f"{before}{count_of(deliveries.count, 'record was', 'records were')} delivered to a member that did not own their partition."
            yield AuditFinding.of(outcome, AuditCause.NOT_OWNED, text, level, deliveries.count, deliveries.cases)


def _list_notes(facts: Facts, level: Level) -> Iterator[AuditFinding]:
    """Facts worth showing that fail nothing."""

    def note_finding(cause: AuditCause, text: str, counted: LedgerFinding) -> AuditFinding:
        return AuditFinding.of(AuditOutcome.PASS, cause, text, level, counted.count, counted.cases)

    if unowned_ms := facts.unowned.count:
        longest = "".join(f", {case.topic}-{case.partition} for {case.count} ms at once" for case in facts.unowned.cases[:1])
        yield note_finding(AuditCause.UNOWNED, f"Partitions had no owner for {unowned_ms} ms in total{longest}.", facts.unowned)
    if uneven := facts.uneven:
        text = f"{count_of(len(uneven), 'generation')} shared their partitions unevenly, first {uneven[0]}."
        yield note_finding(AuditCause.UNEVEN, text, LedgerFinding(len(uneven)))
    if failed := facts.send_failures:
        yield note_finding(
            AuditCause.SENDS_GIVEN_UP,
            f"{count_of(failed, 'record was', 'records were')} given up by their producers.",
            LedgerFinding(failed),
        )
    if facts.of_others:
        partition_names = summarize([f"{topic}-{partition} of {group}" for group, topic, partition in facts.of_others])
        text = f"Partitions that only members without events owned were not judged: {partition_names}."
        yield note_finding(AuditCause.OWNER_WITHOUT_EVENTS, text, LedgerFinding(len(facts.of_others)))
    if skipped := facts.skipped.count:
        text = f"{count_of(skipped, 'offset between deliveries was', 'offsets between deliveries were')} skipped, and no wrapped producer reported records there."
        yield note_finding(AuditCause.SKIPPED, text, facts.skipped)
    if repeats := facts.client_repeats.count:  # counted beside `redelivered`, and no fault of the group or the brokers
        clients = summarize(sorted({case.members[-1] for case in facts.client_repeats.cases}))
        text = f"{count_of(repeats, 'record was', 'records were')} handed out twice by the client itself, in consecutive polls of one generation: {clients}."
        yield note_finding(AuditCause.CLIENT_REPEATED, text, facts.client_repeats)


_ORDER: Final = {cause: rank for rank, cause in enumerate((*AuditCause, None))}


def _severity_key(finding: AuditFinding) -> tuple[int, int, str]:
    cause = finding.reason.cause if isinstance(finding.reason.cause, AuditCause) else None
    return (-finding.outcome.rank, _ORDER[cause], finding.reason.text)


def _levels_with_evidence(accounts: Iterable[LevelHealth]) -> dict[Level, set[Level]]:
    """Each measured level, with those at which a finding speaks against it."""
    measuring_levels: dict[Level, set[Level]] = {}
    for account in accounts:
        for level in (account.level, *account.includes):
            measuring_levels.setdefault(level, {level}).add(account.level)
    return measuring_levels


def _outcome_at(levels: Collection[Level], findings: Iterable[AuditFinding]) -> AuditOutcome:
    """The outcome of these levels alone: PASS unless a ground at them says otherwise."""
    return worst_outcome([AuditOutcome.PASS, *(finding.outcome for finding in findings if finding.level in levels)])


def _check_completeness(account: LevelHealth) -> list[AuditFinding]:
    """The grounds that follow from the completeness of a level's own evidence."""
    findings, level = [], account.level
    if account.events == 0:
        text = f"Nothing of {level.label} was read, so nothing shows that {CLAIMS[level]}."
        findings.append(AuditFinding.of(AuditOutcome.INCONCLUSIVE, AuditCause.LEVEL_UNMEASURED, text, level))
    if account.malformed:
        text = f"{count_of(account.malformed, 'event')} at {level.label} could not be read; kept aside."
        findings.append(AuditFinding.of(AuditOutcome.PASS, AuditCause.MALFORMED, text, level, account.malformed))
    if account.owner_changes:
        bound = 100 * undetected_fault_rate(account.owner_changes)
        text = f"{count_of(account.owner_changes, 'change of owner was', 'changes of owner were')} observed; a fault in fewer than {bound:.2g} % of them could have stayed undetected (95 %)."
        findings.append(AuditFinding.of(AuditOutcome.PASS, AuditCause.OWNER_CHANGES, text, level, account.owner_changes))
    return findings


def undetected_fault_rate(trials: int) -> float:
    """The largest fault rate that with 95 % confidence fits having observed none in `trials` independent trials; 1 without trials."""
    return 1.0 if trials <= 0 else 1.0 - 0.05 ** (1.0 / trials)


def as_dict(verdict: AuditVerdict) -> dict[str, Any]:
    """The verdict as JSON takes it: levels by label, no NaN and no infinity (null: unbounded)."""
    document = {"version": VERSION, "headline": verdict.headline, **_to_plain(verdict)}
    document["levels"] = {level.label: outcome.value for level, outcome in sorted(verdict.levels.items())}
    document["proven"] = [level.label for level in verdict.proven]
    document["unmeasured"] = [level.label for level in verdict.unmeasured]
    return document


def _to_plain(value: Any) -> Any:
    if isinstance(value, Reason):
        reason_fields = {"code": value.code, "cause": value.cause and value.cause.value, "text": value.text}
        return {**reason_fields, "why": value.meaning, "remedy": value.next_step}
    if is_dataclass(value):
        return {attribute.name: _to_plain(getattr(value, attribute.name)) for attribute in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_plain(item) for item in value]
    if isinstance(value, Level):
        return value.label
    return None if isinstance(value, float) and not math.isfinite(value) else value


def may_change(document: Mapping[str, Any]) -> bool:
    """True if more evidence of the same kind may settle a stored verdict: not if only the canary's whole window was unclear."""
    canary = document.get("canary")
    if canary is None or canary["measured"] < canary["window"]:
        return True
    doubts = [finding for finding in document["findings"] if finding["outcome"] == AuditOutcome.INCONCLUSIVE]
    return any(finding not in canary["findings"] for finding in doubts)


def outcome_of(document: Mapping[str, Any]) -> AuditOutcome:
    """The outcome of a stored verdict; raises Refused (X04) for a version or an outcome that this release does not know."""
    version, outcome = document.get("version"), document.get("outcome")
    if version == VERSION and outcome in tuple(AuditOutcome):
        return AuditOutcome(outcome)
    text = f"A stored verdict has version {version!r} and outcome {outcome!r}; this release reads version {VERSION}."
    raise Refused.because(Reason.of(AuditCause.VERDICT_UNKNOWN, text))
