"""Broken cluster files, and whether the answer to each is right.

The first line of a file may say what is expected: `# at LOCATION: WORDS OF THE MESSAGE`, once for each problem, or `# warns CODE`. Without it
an answer is right if its fixes can be applied as they stand, each ends its problem, the last one leaves a valid file, and none weakens safety.
`# by hand` before the location: only the reader knows what to write, so that the words alone are judged.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec import advice, load
from tests.core.spec_fixes import follow_messages

MESSAGES = Path(__file__).parent / "door" / "messages"
_EXPECTED = re.compile(r"^# (by hand )?at ([^ ]+): (.*)$")


def judge_message(file: Path) -> list[str]:
    """What is wrong with the answer to one file; empty if it is right."""
    text = file.read_bytes().decode("utf-8", "replace")
    warned = re.match(r"# warns (\w+)", text)
    try:
        codes = [reason.code for reason in advice(load(file))]
    except SpecError as error:
        answer = str(error).splitlines()[1:]
    else:
        return [] if warned and warned[1] in codes else [f"{file.name} passes"]
    expected = [match for line in text.splitlines() if (match := _EXPECTED.match(line))]
    wrong = [
        f"no problem at {match[2]} says {match[3]!r}: {answer}"
        for match in expected
        if not any(f": {match[2]}: " in line and match[3] in line for line in answer)
    ]
    if expected and len(expected) != len(answer):
        wrong.append(f"{len(answer)} problems, {len(expected)} expected: {answer}")
    if (
        any(match[1] for match in expected)
        or re.search(r":\d+: found .*\[F0[04]\]", answer[0])
        or "for the second time" in answer[0]
    ):
        return wrong + [f"no fix: {line}" for line in answer if "Fix: " not in line]
    return wrong + follow_messages(yaml.safe_load(text))
