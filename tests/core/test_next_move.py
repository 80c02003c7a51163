"""At 3 a.m., in a second language, at 130 words a minute: whatever the code, the right next move is read within a minute, and no sooner than it is due.

Every row of these tables is an entry of the registry: `kmigrate runbook CODE`, and what `kmigrate why` and `kmigrate status` say of that code while
a step waits for it, when the next step would refuse, and as an alarm.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pytest

from airflow_provider_kmigrate.cli import main as run_kmigrate
from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.monitoring.explanation import NextStep, explain_hold, render_explanation
from airflow_provider_kmigrate.core.monitoring.status import list_reason_lines
from airflow_provider_kmigrate.core.reasons import ENTRIES
from airflow_provider_kmigrate.core.reasons.entry import RunbookEntry
from airflow_provider_kmigrate.runbook import main
from airflow_provider_kmigrate.steps.journal import format_reason_lines, format_reasons
from tests.core.next_moves import NEXT, WORDS, count_words_to_next_move, status

_FIRST_STEP = re.compile(r"^(?:1\. |\*\*Do\.\*\* )\S.*$", re.MULTILINE)
_IMPERATIVE = re.compile(
    r"(?:^|[.:;!?] )(?:Start|Stop|Restart|Wait|Clear|Check|Write|Find|Ask|Fix|Pause|Compare|Run|Correct|Put|Give|Read|Add|Change|Take|Move|Set|Raise|"
    r"Make|Search|Keep|Remove|Renew|Install|Delete|Copy|Restore|Mark|Choose|Decide|Upgrade|Repair|Type|Answer|Unpause|Free|Look) ",
    re.MULTILINE,
)
SEEN = (
    "Broker 2 does not answer. Its unit is stopped, and does not start at boot. Its file is of stage 'migration'. It is registered under /brokers/ids, "
    "while KRaft owns the cluster; brokers 0 and 1 list it. The last act on it was 'restart' in step 'broker 2 to migration' of run "
    "kmigrate_zk_to_kraft__prod/manual__2026-12-02T11:24:58.978533+00:00, at 2026-12-02 11:40:11 UTC."
)
"""What a real cluster has to say of a broker that is down: longer than most."""
DOES = "Writes this broker's next properties file and restarts it, as soon as every partition can spare it."


def explain(code: str, decision: Decision, *, is_alarm: bool = False, is_certain: bool = True) -> str:
    """What `kmigrate why` prints if a step decides so; or with the alarm of this code, which passes by itself unless `is_certain`."""
    reason = Reason(code, SEEN)
    alarm = {"code": code, "text": SEEN, "means": reason.meaning, "do": reason.next_step, "is_certain": is_certain}
    step = NextStep("second_roll.broker_1", DOES, decision, 34.0, 600.0)
    return render_explanation(explain_hold(status(alarms=[alarm] if is_alarm else []), step, has_begun=True))


@pytest.mark.parametrize("code", ENTRIES)
def test_the_next_move_is_read_within_a_minute(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([code]) == 0
    text = capsys.readouterr().out
    step = _FIRST_STEP.search(text)
    assert step is not None, "an entry says what to do"
    assert len(text[: step.end()].split()) <= WORDS


@pytest.mark.parametrize("code", ENTRIES)
def test_before_the_alarm_a_wait_has_its_condition_and_its_times_and_no_imperative(code: str) -> None:
    shown = explain(code, Wait((Reason(code, SEEN),)))
    assert f"[{code}] {SEEN}" in shown
    assert "Usually: 34.0 s." in shown
    assert "It becomes an alarm after 10 min" in shown
    assert "Next: " not in shown
    means = Reason(code, SEEN).meaning
    assert _IMPERATIVE.search(means) is None, "what a code means is said before the alarm as well"


@pytest.mark.parametrize("code", ENTRIES)
@pytest.mark.parametrize(
    ("is_alarm", "is_certain"), [(False, True), (True, True), (True, False)], ids=["refused", "alarm", "may pass"]
)
def test_only_then_it_says_what_to_do_and_within_a_minute(code: str, is_alarm: bool, is_certain: bool) -> None:
    reason = Reason(code, SEEN)
    shown = explain(code, Wait((reason,)) if is_alarm else Refuse((reason,)), is_alarm=is_alarm, is_certain=is_certain)
    step = NEXT.search(shown)
    assert step is not None
    assert step[1] == reason.next_step.replace("<cluster>", "prod") if not is_alarm else step[1] == reason.next_step
    assert count_words_to_next_move(shown) <= WORDS
    assert shown.index(step[1]) < shown.index("Why it matters: "), "the move first, then its reason"


@pytest.mark.parametrize("code", ENTRIES)
def test_a_message_and_a_task_log_say_the_move_within_a_minute_and_before_why_it_matters(code: str) -> None:
    reason = Reason(code, SEEN)
    for text in (str(reason), format_reasons([reason]), format_reason_lines([reason])):
        assert f"[{code}] {SEEN}" in text
        begin = text.index(f"Next: {reason.next_step}")
        assert len(text[: begin + len(f"Next: {reason.next_step}")].split()) <= WORDS
        assert text.index("Why it matters: ") > begin
        assert text.endswith(f"Why it matters: {reason.meaning}")


def test_without_a_move_of_its_own_a_reason_says_what_it_means() -> None:
    reason = Reason("G05", SEEN, remedy="")
    assert str(reason) == f"[G05] {SEEN} {reason.meaning}"


def test_a_code_that_is_seen_twice_is_explained_once() -> None:
    reason = Reason("G05", SEEN)
    row = {"code": "G05", "text": SEEN, "means": reason.meaning, "do": reason.next_step}
    lines = list_reason_lines([row, {**row, "text": "Controller 3001 too."}, {**row, "code": "S02"}])
    assert [line for line in lines if line.startswith("[")] == [f"[G05] {SEEN}", "[G05] Controller 3001 too.", f"[S02] {SEEN}"]
    assert len(lines) == 7


class _ParsedError(Exception):
    """The words are understood; nothing is run."""


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command ends once its words are parsed: parsers are made in the functions that run them."""

    def end_after(parse_words: Callable[..., Any]) -> Callable[..., NoReturn]:
        def stop(parser: argparse.ArgumentParser, words: Any = None) -> NoReturn:
            parse_words(parser, words)
            raise _ParsedError

        return stop

    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, end_after(getattr(argparse.ArgumentParser, name)))


VALUES = {
    "<cluster>": "prod",
    "<group>": "billing",
    "PORT": "9092",
    "N": "1",
    "<cluster id>": "id",
    "<folder>": "folder",
    "...": "",
}
"""What an operator types in the place of each word of the runbook."""


def list_commands(entry: RunbookEntry) -> Iterator[str]:
    """The commands of kmigrate in an entry, as they are typed; not those whose whole line is in a section that is named beside them."""
    for text in (entry.means, entry.meanwhile, *entry.do, entry.never, entry.ask):
        for command, behind in re.findall(r"`(kmigrate [^`]*)`( \(\[section \d+\])?", text):
            if not (behind and command == "kmigrate render"):
                yield command


def type_command(command: str) -> Sequence[str]:
    for placeholder, value in VALUES.items():
        command = re.sub(rf"\b{placeholder}\b" if placeholder.isalpha() else re.escape(placeholder), value, command)
    return command.split()[1:]


@pytest.mark.parametrize("code", [code for code, entry in ENTRIES.items() if list(list_commands(entry))])
def test_each_command_that_an_entry_names_is_one_that_kmigrate_understands(
    code: str, parse: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in list_commands(ENTRIES[code]):
        with pytest.raises(_ParsedError):
            run_kmigrate(type_command(command))
