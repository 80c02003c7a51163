"""The form of each answer of `kmigrate-node`: one schema at one boundary, for what stands behind a connection may be anything.

A machine in other hands answers what it likes: other types, numbers beyond any, texts of megabytes. `read` gives an answer its declared
types or refuses it (M09), so that nothing behind it meets another one. Fields that this release does not know are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NoReturn, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic's own need: before Python 3.12 it takes no other

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.masking import mask_words

LARGEST: Final = 8 << 20  # bytes of an answer: a properties file has 1 MiB at most, and a byte of it six characters
_VALUES: Final = 250_000  # of an answer: of the shortest ones, 8 MiB would take 300 MiB of memory
_PLAIN: Final = 1 << 20  # bytes of an answer with any characters
_WIDE: Final = re.compile(rb"\\u[dD][89abAB]")  # the first half of a character beyond the first 65,536
_SHOWN, _FIELDS, _ERROR = 200, 3, 8_000  # characters, of an error's text too; wrong fields that are named
_YEAR_9999: Final = 253_402_300_800

_Form = with_config(ConfigDict(strict=True, extra="ignore"))
_Seconds = Annotated[float, Field(ge=0, lt=_YEAR_9999)]
_Size = Annotated[int, Field(ge=0)]
_Word = Annotated[str, StringConstraints(max_length=200)]
_Path = Annotated[str, StringConstraints(max_length=5_000)]
_Paths = Annotated[list[_Path], Field(max_length=1_000)]
_Text = Annotated[str, StringConstraints(max_length=1 << 20)]


@_Form
class AgentError(TypedDict):
    """Why a request was not carried out: one word for programs, and a sentence."""

    code: _Word
    text: str


@_Form
class ProcessFacts(TypedDict):
    """A role's process now. `birth` identifies it; `since` in seconds since 1970."""

    state: Literal["running", "stopped", "unknown"]
    pid: Annotated[int, Field(ge=0, lt=1 << 31)]
    birth: _Word
    since: _Seconds
    named: NotRequired[_Paths]


@_Form
class FileFacts(TypedDict):
    """A properties file; `text` is None if its hash is the one that was `known`."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    text: _Text | None
    free: NotRequired[_Size | None]
    written: NotRequired[_Seconds | None]


@_Form
class FolderFacts(TypedDict):
    """One directory of a role."""

    meta: _Text | None
    has_metadata_log: bool
    free: NotRequired[_Size | None]


@_Form
class ActFacts(TypedDict):
    """One act of a job, with the times of the machine's clock; without `ended` it is under way."""

    act: _Word
    began: _Seconds
    ended: NotRequired[_Seconds]
    result: NotRequired[Any]
    error: NotRequired[AgentError | None]


@_Form
class JobFacts(TypedDict, total=False):
    """The record of a role's last job, without fields if there was none."""

    id: _Word
    kind: _Word
    state: Literal["running", "done", "failed"]
    error: AgentError | None
    done: Annotated[list[ActFacts], Field(max_length=100)]
    acts: Annotated[list[_Word], Field(max_length=100)]
    busy: bool


def _require_state(job: JobFacts) -> JobFacts:
    if "id" in job and not {"state", "done"} <= job.keys():
        raise ValueError("a job has a state and acts that are done")
    if job.get("state") == "failed" and not job.get("error"):
        raise ValueError("a job that failed has an error")
    return job


def _require_busy(job: JobFacts) -> JobFacts:
    if "busy" not in job:
        raise ValueError("whether the job is busy is missing")
    return job


_Job = Annotated[JobFacts, AfterValidator(_require_state)]


def _check_restarts(unit: dict[str, str]) -> dict[str, str]:
    restarts = unit.get("NRestarts", "")
    if not (restarts.isascii() and restarts.isdigit() and len(restarts) <= 10) and restarts:
        raise ValueError("NRestarts is no number")
    return unit


@_Form
class SoftwareFacts(TypedDict):
    """Kafka's release and the path of Java that run, and those that the next start would load; empty for what is not known."""

    release: _Word
    java: _Path
    disk_release: _Word
    disk_java: _Path
    disk_java_version: _Word
    switches: NotRequired[Annotated[dict[_Word, _Path], Field(max_length=100)] | None]
    jaas: NotRequired[_Text | None]
    unread: NotRequired[_Paths]


@_Form
class NodeFacts(TypedDict):
    """All that the agent reports of a role."""

    process: ProcessFacts
    unit: Annotated[dict[_Word, _Path], Field(max_length=100), AfterValidator(_check_restarts)]
    boot_enabled: bool | None
    file: FileFacts | None
    log_dirs: Annotated[dict[_Path, FolderFacts], Field(max_length=1_000)]
    kept_in: _Path
    clock: NotRequired[_Seconds]
    job: NotRequired[_Job]
    failing: NotRequired[str | None]
    unreadable: NotRequired[_Paths | None]
    exposed: NotRequired[_Paths]
    starts: NotRequired[_Paths]
    beside: NotRequired[_Size]
    behind: NotRequired[bool]
    software: NotRequired[SoftwareFacts]


@_Form
class RoleFacts(TypedDict):
    """A role as node.json describes it."""

    backend: _Word
    service: _Word | None
    properties: _Path
    log_dirs: _Paths
    user: NotRequired[_Word]
    stop_timeout: NotRequired[_Seconds]
    has_storage_tool: bool


@_Form
class Hello(TypedDict):
    """Who answers, and for which roles."""

    agent: _Word
    protocol: NotRequired[int]
    host: _Word
    python: NotRequired[_Word]
    root: bool
    roles: Annotated[dict[_Word, RoleFacts], Field(max_length=100)]


@_Form
class _LogAnswer(TypedDict):
    log: str


@_Form
class _Leftovers(TypedDict):
    left: Annotated[list[Annotated[list[_Path], Field(min_length=2, max_length=2)]], Field(max_length=100_000)]


@_Form
class _FoundIds(TypedDict):
    """How many partitions, their size, and some of them: directory and the id on disk."""

    count: _Size
    bytes: NotRequired[_Size]
    some: Annotated[list[Annotated[list[_Path], Field(min_length=2, max_length=2)]], Field(max_length=10)]


@_Form
class _TopicIds(TypedDict):
    """How many partitions were compared, and what was found of them."""

    read: _Size
    found: Annotated[dict[_Word, _FoundIds], Field(max_length=20)]


@_Form
class _Tried(TypedDict):
    """What systemd says of the node's unit when it loads it; empty: nothing, or there is no systemd."""

    verified: Annotated[list[_Path], Field(max_length=20)]


@_Form
class _Addresses(TypedDict):
    addresses: Annotated[list[_Word], Field(max_length=20)]


@_Form
class _Done(TypedDict):
    """Of a verb whose answer says nothing but that it was done."""


@_Form
class _Answer(TypedDict):
    """What stands around each answer."""

    v: NotRequired[int]
    id: int | None
    ok: NotRequired[dict[str, Any]]
    error: NotRequired[AgentError]


_STARTED: Final[TypeAdapter[Any]] = TypeAdapter(_Job)
_DONE: Final[TypeAdapter[Any]] = TypeAdapter(_Done)
_ENVELOPE: Final[TypeAdapter[Any]] = TypeAdapter(_Answer)
ANSWERS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "hello": TypeAdapter(Hello),
    "facts": TypeAdapter(NodeFacts),
    "job": TypeAdapter(Annotated[JobFacts, AfterValidator(_require_state), AfterValidator(_require_busy)]),
    "read_log": TypeAdapter(_LogAnswer),
    "leftovers": TypeAdapter(_Leftovers),
    "topic_ids": TypeAdapter(_TopicIds),
    "try_tool": TypeAdapter(_Tried),
    "addresses": TypeAdapter(_Addresses),
    **dict.fromkeys(("start", "stop", "restart"), _STARTED),
    **dict.fromkeys(("go_on", "install_file", "write_meta", "format", "set_aside", "remove", "boot"), _DONE),
}
"""The form of the answer to each verb."""


def read(name: str, line: bytes) -> dict[str, Any]:
    """The answer in a line, with what is around it; `name`: of the node that was asked. Raises `Failed` (M09)."""
    try:  # ASCII, as the agent writes it: one other character would make a text of four times the size
        answer = None if _is_wide(line) else read_json(line.decode("ascii"), most=_VALUES)
    except ValueError:
        answer = None
    if answer is None:
        refuse(f"{name}: what answers is no kmigrate-node: {printable(repr(line[:_SHOWN]))}")
    return _validate(_ENVELOPE, f"{name}: what answers is no kmigrate-node", answer)


def _is_wide(line: bytes) -> bool:
    """True for a large answer with a character that would make a text of it four times as large; files have none, and logs are short."""
    return len(line) > _PLAIN and _WIDE.search(line) is not None


def check_answer(name: str, verb: str, answer: Any) -> dict[str, Any]:
    """What a verb's answer holds, of its declared types. Raises `Failed` (M09)."""
    return _validate(ANSWERS.get(verb, _DONE), f"{name}: kmigrate-node's answer to {verb} has not its form", answer)


def _validate(form: TypeAdapter[Any], what: str, answer: Any) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = form.validate_python(answer)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        shown_problems = "; ".join(printable(text[:_SHOWN]) for text in wrong[:_FIELDS])
        refuse(f"{what}: {shown_problems}{f' and {len(wrong) - _FIELDS} more' if len(wrong) > _FIELDS else ''}")
    return fields


def text_of(error: Mapping[str, str]) -> str:
    """The sentence of an agent's error, for people; the end of a log may follow it."""
    return printable(mask_words(error["text"])[:_ERROR], "\n\t")


def refuse(text: str) -> NoReturn:
    """Raise `Failed` (M09)."""
    raise Failed.because(Reason("M09", f"{text}."))
