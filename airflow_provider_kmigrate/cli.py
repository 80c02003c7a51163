"""`kmigrate`: what an administrator runs by hand, beside the DAGs.

Every command returns 0 if all is well; what else it returns, its own help says. `-o json` prints JSON instead of sentences, where a command has it.
130: interrupted; 141: the reader of its output has gone, such as `head`. A command is imported when it is run: most need neither Airflow nor
Kafka's clients.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Final, NamedTuple

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.exceptions import KMigrateError


class Command(NamedTuple):
    """`module` has `main(argv) -> exit code`, which may raise `KMigrateError`: its text is printed, and the code is 2."""

    module: str
    about: str


COMMANDS: Final = {
    "init": Command("commands.init", "write the first cluster file of a cluster, from what it reports"),
    "check": Command("check", "check cluster files, and the notifiers that they name"),
    "preflight": Command("commands.preflight", "check whether a cluster may be migrated; read-only"),
    "plan": Command("commands.plan", "show what a migration would do to a cluster, and how long it would take; read-only"),
    "status": Command("commands.status", "show where clusters stand, and whether they can be rolled back; read-only"),
    "audit": Command("dag_builders.audit_check", "check whether Spark can do a cluster's audits, with the settings of its file"),
    "why": Command("commands.why", "show the condition that holds a migration, and when it becomes an alarm; read-only"),
    "history": Command("commands.history", "show what runs have done to a cluster, and how long each restart took"),
    "permissions": Command("commands.permissions", "print the rights that kmigrate needs in Kafka, as commands"),
    "pause": Command("commands.pause", "stop every act of kmigrate on a cluster: the kill switch"),
    "resume": Command("commands.resume", "take the kill switch of a cluster away"),
    "flag": Command("commands.flag", "have Airflow give a controller its migration flag back"),
    "unlock": Command("commands.unlock", "free a cluster from a run that is over for good"),
    "node": Command("node.command", "install the agent on the machines of a cluster, or try it there; accept an edited file"),
    "groups": Command("groups", "scan consumer groups on ZooKeeper; copy, reset, release"),
    "evidence": Command("commands.evidence", "write all evidence of a migration into one archive; verify one offline"),
    "approvals": Command("approvals", "verify what was approved: record, journal and act"),
    "runbook": Command("runbook", "print what a code means and what to do, or the whole runbook"),
    "render": Command("steps.rendered", "print a node's properties file of a stage"),
    "originals": Command("steps.originals", "store an edited original of a broker in the backup"),
    "probe": Command("probe.command", "start, stop or judge a probe of the cluster"),
    "completion": Command("completion", "print a completion script for bash or zsh"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command; 2 for words that no command understands."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        return _run_command(words[0], words[1:])
    commands = "\n".join(f"  {name:<12}{command.about}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="kmigrate",
        usage="kmigrate COMMAND ...",
        description=f"{(__doc__ or '').splitlines()[0]}\n\ncommands:\n{commands}\n\nHelp of a command: kmigrate COMMAND --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kmigrate {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    if words and not words[0].startswith("-") and (alike := get_close_matches(words[0].lower(), COMMANDS, 1)):
        parser.error(f"there is no command {words[0]!r}. Is it: kmigrate {alike[0]}")
    parser.parse_args(words)
    return 0


def _run_command(name: str, words: Sequence[str]) -> int:
    """The exit code; what ends a command from outside is a sentence on standard error, and no traceback."""
    _prepare_output()
    try:
        code: int = import_module(f"airflow_provider_kmigrate.{COMMANDS[name].module}").main(words)
        sys.stdout.flush()
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (KeyboardInterrupt, EOFError):  # also the end of the input in place of an answer
        sys.stderr.write(f"\nInterrupted. What kmigrate {name} had begun may be done in part: run it again.\n")
        return 130
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:
        _discard_output()
        place = error.filename or "its output, or another file"
        sys.stderr.write(
            f"kmigrate {name} cannot read or write {place}: {error.strerror or error}. Correct that, and run it again.\n"
        )
        return 2
    return code


def _prepare_output() -> None:
    """Every character can be written whatever the terminal's encoding is, and a closed standard output is no error."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w", encoding="utf-8") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a stream of a test or of Airflow may not be one of a file
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _discard_output() -> None:
    """What is still to be written goes nowhere: else Python complains about it at its end."""
    with suppress(OSError, ValueError):  # a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
