"""The console script `kmigrate`."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.cli import VERBS, main


def test_its_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown and verb.about in shown for name, verb in VERBS.items())


@pytest.mark.parametrize("words", [[], ["migrat"], ["--nonsense"], ["Check"]])
def test_words_that_no_verb_understands_end_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "kmigrate VERB" in capsys.readouterr().err


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help_that_begins_with_its_own_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: kmigrate {name}")


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_refuses_an_unknown_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([name, "--nonsense"])
    assert f"kmigrate {name}" in capsys.readouterr().err


def test_an_exit_code_is_the_verb_s(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(f"airflow_provider_kmigrate.{VERBS['runbook'].module}")
    monkeypatch.setattr(module, "main", lambda words: 40 + len(words))
    assert main(["runbook", "G05", "G43"]) == 42


def test_it_is_installed() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("kmigrate"), "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"kmigrate {__version__}\n"
