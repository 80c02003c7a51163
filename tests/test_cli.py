"""The console script `kmigrate`."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.cli import COMMANDS, main


def test_the_help_of_kmigrate_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown and command.about in shown for name, command in COMMANDS.items())


@pytest.mark.parametrize("words", [[], ["migrat"], ["--nonsense"], ["Check"]])
def test_words_that_no_command_understands_end_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "kmigrate COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_begins_with_its_own_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: kmigrate {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_an_unknown_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([name, "--nonsense"])
    assert f"kmigrate {name}" in capsys.readouterr().err


def test_an_exit_code_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(f"airflow_provider_kmigrate.{COMMANDS['runbook'].module}")
    monkeypatch.setattr(module, "main", lambda words: 40 + len(words))
    assert main(["runbook", "G05", "G43"]) == 42


def test_the_console_script_is_installed() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("kmigrate"), "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"kmigrate {__version__}\n"


@pytest.mark.parametrize(
    "name",
    ["", "init", "why", "history", "evidence", "evidence verify", "permissions", "runbook", "pause", "resume", "flag", "unlock"],
)
def test_help_comes_at_once_because_nothing_heavy_is_imported(name: str) -> None:
    """Airflow, Kafka's clients and pydantic take seconds to import."""
    words = [*name.split(), "--help"]
    code = f"""
import sys
from airflow_provider_kmigrate.cli import main
try:
    main({words!r})
except SystemExit:
    pass
print(sorted({{"airflow", "confluent_kafka", "kafka", "kazoo", "pydantic", "yaml"}} & sys.modules.keys()), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("words", [["--help"], ["runbook", "H01"]])
def test_help_and_runbook_take_less_than_half_a_second_of_a_processor(words: list[str]) -> None:
    """Processor time, which a busy machine does not stretch; the quickest of three."""
    code = f"""
import contextlib, io, time
from airflow_provider_kmigrate.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main({words!r})
print(time.process_time())
"""
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True) for _ in range(3)
    ]
    assert min(float(run.stdout) for run in runs) < 0.5


def test_airflow_offers_every_command_and_passes_all_its_words_on(tmp_path: Path) -> None:
    """Through the entry point that `airflow` reads, in a process of its own."""
    code = """
import sys
from airflow.cli.cli_parser import get_parser
parser = get_parser()
for words in (["runbook", "--help"], ["runbook", "H01"], ["unlock", "--run", "a b", "/no/such.yaml", "--connections", "/none"]):
    arguments = parser.parse_args(["kmigrate", *words])
    try:
        arguments.func(arguments)
    except SystemExit as end:
        print("code", end.code)
from airflow_provider_kmigrate.airflow_cli import list_commands
print(*(command.name for command in list_commands()[0].subcommands))
"""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/a.db",
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True, env=environment)
    assert "usage: kmigrate runbook" in done.stdout
    assert "H01 Another run owns the cluster" in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("code")] == ["code 0", "code 0", "code 2"]
    assert done.stdout.splitlines()[-1].split() == list(COMMANDS)
