"""The old consumer's wildcards: which topics a Java regular expression selects, told by Python where both mean the same.

Only what Python reads exactly as Java does is held; the rest is refused (`None`), for a member that computes another set of topics
than the old consumers beside it takes partitions that are not its own. Topic names are ASCII without blanks and line ends, which
leaves little to differ: escapes of single languages, braces, flags, sets within sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from airflow_provider_kmigrate.core.coordination.registration import WHITE_LIST
from airflow_provider_kmigrate.core.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

INTERNAL: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))  # what String.trim takes away
_ESCAPED: Final = r"\\[^A-Za-z0-9]|\\[dDwWsS]"  # a sign, or a class that is one in both languages
_SET: Final = rf"\[\^?(?:(?!--|\|\||~~)[^\[\]\\&^]|{_ESCAPED})+\]"
_PIECE: Final = re.compile(
    rf"{_ESCAPED}|\\[bB]|{_SET}"
    r"|\((?!\?)|\(\?(?::|=|!|<=|<!)"  # no flags, no names
    r"|\{[0-9]+\}[?+]?"  # a comma became a bar, so that other braces are errors in Java and plain signs in Python
    r"|[^\\\[\]{}(]"
)


_WHOLE: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:\$|\.\*)\Z")  # it says itself where a name ends
_OTHERWISE: Final = re.compile(
    r"\(\?|\\[A-Za-z0-9]|[*+?}][?+]|[, \"']|\[[^\]]*\\"
)  # what Java has and POSIX has not, and `trimmed` changes


def trimmed(wildcard: str) -> str:
    """What is done to a wildcard before Java compiles it: a comma is a bar, blanks and surrounding quotes go."""
    text = wildcard.strip(_JAVA_BLANKS).replace(",", "|").replace(" ", "")
    return re.sub(r"""["']+\Z""", "", re.sub(r"""\A["']+""", "", text))


def compiled(wildcard: str) -> re.Pattern[str] | None:
    """The wildcard as Python holds it; None where it is no expression, or one that the two languages may read differently."""
    text, at = trimmed(wildcard), 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            return None
        at = piece.end()
    try:
        return re.compile(text, re.ASCII)
    except re.error:
        return None


def alike_in_librdkafka(subscription: str) -> bool:
    """Whether a plain consumer that subscribes to this text (it begins with `^`) gets the topics of the white list that is registered for it.

    librdkafka's are POSIX's extended expressions, and match from the beginning of a name, not whole names. False: perhaps not.
    """
    return _WHOLE.search(subscription) is not None and not _OTHERWISE.search(subscription) and not _open_bar(subscription)


def _open_bar(expression: str) -> bool:
    """A bar in no brackets: to POSIX it parts the anchors, too."""
    parts = re.sub(r"\\.|\[[^\]]*\]", "", expression)
    while (inner := re.sub(r"\([^()]*\)", "", parts)) != parts:
        parts = inner
    return "|" in parts


def selected(pattern: str, expression: re.Pattern[str], topics: Iterable[str], *, internal: bool = False) -> frozenset[str]:
    """The topics that a wildcard of this kind selects; Kafka's own only where the group does not exclude them."""
    wanted = pattern == WHITE_LIST
    return frozenset(
        topic for topic in topics if (expression.fullmatch(topic) is not None) == wanted and (internal or topic not in INTERNAL)
    )
