"""`kmigrate completion bash|zsh`: print a script that completes commands, their options and files: `eval "$(kmigrate completion bash)"`.

The script is made from each command's own help, and asks nothing later. Exit code 0.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Sequence
from importlib import import_module

from airflow_provider_kmigrate.cli import COMMANDS

_SCRIPT = """\
_kmigrate() {{
  local words
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"
  else case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="" ;;
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o bashdefault -o default -F _kmigrate kmigrate
"""
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_SUBCOMMANDS = re.compile(r"\{([a-z-]+(?:,[a-z-]+)*)\}")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate completion", description=(__doc__ or "").replace("\n", " "))
    parser.add_argument("shell", choices=("bash", "zsh"))
    shell = parser.parse_args(argv).shell
    sys.stdout.write("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "")
    sys.stdout.write(render_script())
    return 0


def render_script() -> str:
    """The script for bash; zsh takes it behind `bashcompinit`."""
    helps = {name: _read_help(command.module) for name, command in COMMANDS.items()}
    cases = "\n".join(f'    {name}) words="{" ".join(_list_words(text))}" ;;' for name, text in helps.items())
    return _SCRIPT.format(commands=" ".join(COMMANDS), cases=cases)


def _read_help(module: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        import_module(f"airflow_provider_kmigrate.{module}").main(["--help"])
    return shown.getvalue()


def _list_words(text: str) -> list[str]:
    subcommands = _SUBCOMMANDS.search(text.split("\n\n", maxsplit=1)[0])
    return sorted({*(subcommands[1].split(",") if subcommands else ()), *_OPTION.findall(text)})
