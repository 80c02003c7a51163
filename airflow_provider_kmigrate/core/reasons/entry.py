"""What an audit can find, one entry of the runbook, and one letter's area.

Decisions compare causes; several that have the same remedy share one code (`RunbookEntry.causes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto


class AuditCause(StrEnum):
    """One kind of finding. The order is that in which a verdict lists findings of the same outcome."""

    # Records, from the clients' own events
    LOST = auto()
    DIVERGED = auto()  # two records share one offset
    STORED_TWICE = auto()
    COMMIT_GAP = auto()  # committed before they were delivered
    REDELIVERED = auto()
    REORDERED = auto()
    DOUBLE_OWNED = auto()
    NOT_OWNED = auto()  # delivered to a member that did not own the partition
    UNOWNED = auto()
    UNEVEN = auto()
    SENDS_GIVEN_UP = auto()
    OWNER_WITHOUT_EVENTS = auto()
    SKIPPED = auto()  # offsets that no wrapped producer reported
    CLIENT_REPEATED = auto()  # handed out twice by a client itself

    # Logs and commits, before the step and after it
    SNAPSHOTS_DIFFER = auto()  # two observations that cannot be compared
    LOG_SHRUNK = auto()
    LOG_CHANGED = auto()
    LOG_TRUNCATED = auto()
    EPOCH_WENT_BACK = auto()
    PARTITIONS_GONE = auto()
    TOPIC_RECREATED = auto()
    LOG_UNREAD = auto()
    COMPACTED = auto()
    RETENTION = auto()
    UNCHANGED = auto()
    COMMIT_WENT_BACK = auto()
    COMMIT_REMOVED = auto()
    GROUP_STALLED = auto()
    COMMITS_UNKNOWN = auto()  # records of __consumer_offsets in an unknown format
    SAMPLE_WRONG = auto()
    NOTHING_TO_COMPARE = auto()
    START_UNEXPLAINED = auto()  # a log begins later, and retention does not explain it
    NOT_REQUESTED = auto()
    POLICY_CHANGED = auto()
    COMMIT_LATE = auto()  # a retried commit took effect after a newer one
    COORDINATORS_SPLIT = auto()  # two coordinators alternately committed for one group
    OFFSETS_REVIVED = auto()  # an older commit took effect after a newer one, or can at any time
    COMMITS_MISPLACED = auto()  # not in the partition of __consumer_offsets that the topic's count gives the group
    COPIES_LEFT = auto()  # older copies in other partitions of __consumer_offsets
    COMMITS_READ = auto()

    # The clients' events themselves
    BAD_LINES = auto()
    WRITER_ABSENT = auto()
    NO_START = auto()
    NUMBERS_MISSING = auto()
    NO_STOP = auto()
    RECORD_INCOMPLETE = auto()  # the writer itself says so
    NUMBER_REUSED = auto()
    COUNT_GAP = auto()  # a hole in a member's count of its deliveries
    NOTHING_ACKED = auto()
    NO_GROUP = auto()
    NOT_DELIVERED_YET = auto()
    GAPS_UNCLEAR = auto()
    MAYBE_COMPACTED = auto()
    NO_EVIDENCE = auto()  # none since the step began
    CLOCK_AHEAD = auto()
    SENDS_FAIL = auto()
    IN_UNREAD_EVENTS = auto()

    # The verdict, and a group's canary
    LEVEL_UNMEASURED = auto()
    SESSION_SILENT = auto()  # the run's audit session gave no answer in time
    MALFORMED = auto()
    OWNER_CHANGES = auto()
    VERDICT_UNKNOWN = auto()
    FEW_MEMBERS = auto()
    MEMBER_EVENTS_LOST = auto()
    NO_TRAFFIC = auto()
    CANARY_IDLE = auto()
    FEW_VALUES = auto()
    CANARY_WORSE = auto()
    CANARY_UNCLEAR = auto()
    CANARY_WITHIN = auto()
    LEFT_OUT = auto()
    WINDOW_OPEN = auto()
    CANARY_UNSEEN = auto()

    # What the audit reads
    MECHANISM_UNKNOWN = auto()
    OFFSETS_UNREAD = auto()
    CHECKPOINT_MISMATCH = auto()
    SCHEMA_UNKNOWN = auto()
    JARS_MISSING = auto()
    JAVA_MISSING = auto()
    REQUEST_WRONG = auto()
    SNAPSHOT_DAMAGED = auto()
    TOPIC_MISSING = auto()
    PARTITION_UNREAD = auto()
    EVENTS_REMOVED = auto()
    EVENTS_EXPIRE = auto()


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
        """The id that links to this area within the runbook."""
        return f"{self.letter}-codes".lower()

    def markdown(self) -> str:
        """The area's heading and introduction in the runbook, without its entries."""
        intro = f"\n{self.intro}\n" if self.intro else ""
        return f'<a id="{self.anchor}"></a>\n\n## {self.letter}: {self.title}\n{intro}'


def read(text: str) -> tuple[tuple[Area, ...], tuple[RunbookEntry, ...]]:
    """The areas and entries of a text. An empty line ends each; its first line is the letter or code, and the title.

    Then one `field: text` a line, with the fields of `Area` and `RunbookEntry`; each step is a `do`, each line of an introduction
    an `intro`. Raises ValueError, TypeError or KeyError for anything else.
    """
    found = [_read(block) for block in text.strip().split("\n\n")]
    areas = tuple(each for each in found if isinstance(each, Area))
    return areas, tuple(each for each in found if isinstance(each, RunbookEntry))


def _read(block: str) -> Area | RunbookEntry:
    head, *lines = block.splitlines()
    code, title = head.split(" ", 1)
    said: dict[str, list[str]] = {}
    for field, _, words in (line.partition(":") for line in lines):
        said.setdefault(field, []).append(words.removeprefix(" "))
    if len(code) == 1:
        intro = "\n".join(said.pop("intro", []))
        return Area(code, title, intro=intro, **_single(said))
    steps, causes = said.pop("do"), ", ".join(said.pop("causes", []))
    named = tuple(AuditCause[name] for name in causes.split(", ") if name)
    return RunbookEntry(code, title, do=tuple(steps), causes=named, **_single(said))


def _single(said: dict[str, list[str]]) -> dict[str, str]:
    return {field: words for field, (words,) in said.items()}
