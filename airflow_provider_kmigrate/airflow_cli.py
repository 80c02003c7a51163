"""`airflow kmigrate COMMAND ...` (Airflow 3.2 and later): the commands of `kmigrate`, among those of Airflow.

Airflow imports this at each start of `airflow`; a command of kmigrate is imported when it is run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand

from airflow_provider_kmigrate.cli import COMMANDS, main


class _AllWords(Arg):
    """Everything behind the name of the command, options too: the command of kmigrate parses it."""

    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        """Have this parser take no word for an option, also not `--help`."""
        parser.prefix_chars = ""
        super().add_to_parser(parser)


def list_commands() -> list[CLICommand]:
    """The group `kmigrate`, for Airflow's parser."""
    words = _AllWords(("words",), nargs=argparse.REMAINDER, help="as those of `kmigrate`")  # type: ignore[no-untyped-call]
    commands = [ActionCommand(name, command.about, _make_runner(name), (words,)) for name, command in COMMANDS.items()]
    return [GroupCommand("kmigrate", "Migrate Kafka clusters from ZooKeeper to KRaft", commands)]


def _make_runner(name: str) -> Callable[[Any], None]:
    def run(arguments: Any) -> None:
        raise SystemExit(main([name, *arguments.words]))

    return run
