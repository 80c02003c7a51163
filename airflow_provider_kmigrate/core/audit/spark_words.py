"""Spark's long errors and its progress in a few words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.shared.text import count_of, format_duration, printable
from airflow_provider_kmigrate.masking import mask_secrets

#: Before an option of Spark's Kafka source among a job's properties: spark-submit passes on only what begins with `spark.`.
KAFKA_OPTIONS: Final = "spark.kmigrate."
#: Of the driver of a run's audit session, which waits most of its time: a heap that stays as small as what is in it, for a few processors.
SESSION_JAVA: Final = "-XX:+UseSerialGC -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"
_LONGEST: Final = 400  # characters of each part
_CAUSED_BY: Final = "Caused by: "
#: Spark's words for a worker that is gone; below them it names only the end of a stream, and a debugging option.
_WORKER_GONE: Final = re.compile(r"Python worker (?:exited unexpectedly|failed to connect back)")
_WORKER_ENDED: Final = (
    "a Python worker of Spark's ended in the middle, which the kernel or the cluster does if memory is short; give executors more beside their heap"
    " (spark.executor.memoryOverhead), or fewer cores"
)
#: What is no cause: frames of Java and Python, with the line of code below a frame, and headings.
_FRAME: Final = re.compile(r"^(?:at [^(]*\(.*\)|\s+.*|\.\.\. \d+ more|Traceback \(most recent call last\):|Driver stacktrace:|)$")
#: A damaged file: its cause alone names a checksum, and no file.
_READ_FILE: Final = re.compile(r"Encountered error while reading file (\S+?)\.?(?:\s|$)")
_RAISED: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z](?=\w*[a-z])\w*(?::\s|$)")  # a class, and what it says


def cause_of(text: str) -> str:
    """An error's first line, and the innermost cause of a Java stack or a Python worker's traceback below it; secrets masked.

    The first line alone often says only that there is one ("An exception was thrown from the Python worker:"). Of a worker that was killed
    there is no traceback.
    """
    text = mask_secrets(text)
    lines = [line.removeprefix(": ") for line in text.strip().splitlines()] or [""]
    first = printable(lines[0].strip())[:_LONGEST].rstrip()
    java = [line.removeprefix(_CAUSED_BY) for line in lines if line.startswith(_CAUSED_BY)]
    python = [line for line in lines[1:] if not _FRAME.match(line) and _RAISED.match(line)]
    inner = (java or python or [""])[-1]
    if java and (worker := [line for line in python if not line.startswith(("org.", "java.", _CAUSED_BY))]):
        inner = worker[-1]  # a worker's own error is what Java's only reports
    elif _WORKER_GONE.search(text):
        inner = _WORKER_ENDED
    if (file := _READ_FILE.search(text)) and file[1] not in first + inner:
        inner = f"{file[1]}: {inner}"
    inner = printable(inner.strip())[:_LONGEST].rstrip()
    return first if not inner or inner in first else f"{first.rstrip(':')}: {inner}"


class StageProgress(NamedTuple):
    """A stage that runs: its number, and how many of its tasks are done, in all, running and failed."""

    number: int
    done: int
    tasks: int
    running: int
    failed: int


def progress_line(what: str, seconds: float, stages: Sequence[StageProgress]) -> str:
    """How far Spark is with something after so many seconds."""
    parts = (
        f"stage {stage.number}: {stage.done} of {count_of(stage.tasks, 'task')}, {stage.running} running{f', {stage.failed} failed' if stage.failed else ''}"
        for stage in stages
    )
    return f"Spark for {format_duration(1000 * seconds)}: {'; '.join(parts)} ({what})"
