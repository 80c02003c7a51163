"""`kmigrate`: what an administrator runs by hand, beside the DAGs.

Every verb returns 0 if all is well; what else it returns, its own help says. `-o json` prints JSON instead of sentences, where a verb has it.
A verb is imported when it is run: most need neither Airflow nor Kafka's clients.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

from airflow_provider_kmigrate import __version__


class Verb(NamedTuple):
    """`module` has `main(argv) -> exit code`."""

    module: str
    about: str


VERBS: Final = {
    "check": Verb("spec.command", "check cluster files"),
    "preflight": Verb("preflight.command", "check whether a cluster may be migrated, without Airflow; read-only"),
    "node": Verb("node.command", "install the agent on the machines of a cluster, or try it there"),
    "groups": Verb("groups", "scan consumer groups on ZooKeeper; copy, reset, release"),
    "approvals": Verb("approvals", "verify what was approved: record, journal and act"),
    "runbook": Verb("runbook", "print what a code means and what to do, or the whole runbook"),
    "render": Verb("steps.rendered", "print a node's properties file of a stage"),
    "originals": Verb("steps.originals", "store an edited original of a broker in the backup"),
    "probe": Verb("probe.command", "start, stop or judge a probe of the cluster"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the verb; 2 for words that no verb understands."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in VERBS:
        code: int = import_module(f"airflow_provider_kmigrate.{VERBS[words[0]].module}").main(words[1:])
        return code
    verbs = "\n".join(f"  {name:<12}{verb.about}" for name, verb in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="kmigrate",
        usage="kmigrate VERB ...",
        description=f"{(__doc__ or '').splitlines()[0]}\n\nverbs:\n{verbs}\n\nHelp of a verb: kmigrate VERB --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kmigrate {__version__}")
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help=argparse.SUPPRESS)
    parser.parse_args(words)
    return 0
