"""The console script `kmigrate`."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.cli import COMMANDS, main
from tests.trees import ROOT


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


QUICK_START = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
(CLUSTER,) = re.findall(r"```yaml\n(.*?)```", QUICK_START, re.DOTALL)
KMIGRATE = "import sys; from airflow_provider_kmigrate.cli import main; sys.exit(main(sys.argv[1:]))"


def have_it_end_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def end(_words: list[str]) -> int:
        raise error

    monkeypatch.setattr(import_module(f"airflow_provider_kmigrate.{COMMANDS['runbook'].module}"), "main", end)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (EOFError(), 130, "Interrupted."),
        (KeyboardInterrupt(), 130, "Interrupted. What kmigrate runbook had begun may be done in part: run it again."),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (
            PermissionError(13, "Permission denied", "/home/x"),
            2,
            "kmigrate runbook cannot read or write /home/x: Permission denied.",
        ),
        (OSError(28, "No space left on device"), 2, "cannot read or write its output, or another file: No space left on device."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_ends_a_command_from_outside_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    have_it_end_with(monkeypatch, error)
    monkeypatch.setattr("airflow_provider_kmigrate.cli._discard_output", lambda: None)  # capsys reads that output
    assert main(["runbook"]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert bool(shown) is bool(said)


def test_a_reader_that_has_read_enough_leaves_no_traceback() -> None:
    reader, output = os.pipe()
    os.close(reader)
    words = [sys.executable, "-c", KMIGRATE, "runbook"]
    done = subprocess.run(words, stdout=output, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(output)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_leaves_no_traceback() -> None:
    words = [sys.executable, "-c", KMIGRATE, "runbook"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    said = "kmigrate runbook cannot read or write its output, or another file: No space left on device. Correct that, and run it again.\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_any_name_is_written_on_any_terminal_and_a_closed_output_is_no_error() -> None:
    """A runbook in whose guide a letter is that ASCII does not have."""
    text = r"'K\u00f6ln \u2026 \udcff\n'"
    code = f"from airflow_provider_kmigrate import runbook; runbook.render_runbook = lambda: {text}; {KMIGRATE}"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code, "runbook"], env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, rb"K\xf6ln \u2026 \udcff" + b"\n", b"")
    closed = subprocess.run(
        ["bash", "-c", f"{sys.executable} -c '{KMIGRATE}' runbook G05 >&-"], capture_output=True, timeout=60, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("word", "command"), [("stauts", "status"), ("Check", "check"), ("evidnce", "evidence"), ("unlok", "unlock")]
)
def test_a_word_that_is_like_a_command_is_answered_with_it(word: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([word, "prod.yaml"])
    assert capsys.readouterr().err.endswith(f"there is no command {word!r}. Is it: kmigrate {command}\n")


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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("words", [["history", "--folder", "folder"], ["why"], ["plan"], ["status"]], ids=lambda words: words[0])
def test_json_is_json_whatever_the_terminals_encoding_is(words: list[str], tmp_path: Path) -> None:
    """A character that the terminal does not have is written as JSON's own escape: another one would end its reader."""
    shown = {
        "kind": words[0],
        "cluster": "prod",
        "run": "dag/r\u00fcn \u2192 \u2713",
        "alarms": [],
        "unread": [],
        "state": "nothing",
    }
    patches = {
        "history": "from airflow_provider_kmigrate.commands import history as m; m.describe_history = lambda *_: shown | {'runs': [1]}",
        "why": "from airflow_provider_kmigrate.commands import explaining as m; m.explain_cluster = lambda *_: shown",
        "status": "from airflow_provider_kmigrate.commands import status as m; m._observe = lambda *_, **__: shown; m.is_well = bool",
        "plan": "from contextlib import nullcontext; from airflow_provider_kmigrate.commands import plan as m;"
        "m.open_context = lambda *_: nullcontext(); m._MAKERS = {'migration': lambda *_: shown}; m.is_blocked = lambda _: False",
    }
    (tmp_path / "prod.yaml").write_text(CLUSTER)
    program = (
        f"import json, sys; shown = json.loads({json.dumps(shown)!r}); {patches[words[0]]}; sys.argv[0] = 'kmigrate'; {KMIGRATE}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, words[0], "prod.yaml", *words[1:], "-o", "json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "LC_ALL": "C"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["run"] == shown["run"]
