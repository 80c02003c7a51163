"""Hostile peers: of each the answers of `tests.kit.hostile`, and how many of them end otherwise than they must.

`answers`: tried, of each peer under its name, too. `outside`: those that end in neither an answer nor one coded sentence of the exception
tree; `over_deadline`: a call later than its own time-out and one second; `over_memory`: those that take more than 64 MiB beyond what the
process had. `--most`: of each peer, drawn by `--seed`; 0: all.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

MUST_BE_ZERO = ("outside", "over_deadline", "over_memory")


def main(arguments: Sequence[str], _build: Path) -> dict[str, object]:
    """The figures."""
    from tests.kit import hostile

    parser = argparse.ArgumentParser(prog="hostile")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=400)
    parser.add_argument("--peer", choices=hostile.PEERS, action="append")
    chosen = parser.parse_args(arguments)
    ended = {peer: hostile.run(peer, chosen.seed, chosen.most) for peer in chosen.peer or hostile.PEERS}
    wrong = [f"{peer}: {each}" for peer, all_of in ended.items() for each in all_of if each.outside or each.late or each.large]
    print("\n".join(wrong))
    every = [each for all_of in ended.values() for each in all_of]
    return {
        "answers": len(every),
        "outside": sum(bool(each.outside) for each in every),
        "over_deadline": sum(each.late for each in every),
        "over_memory": sum(each.large for each in every),
        **{peer: len(all_of) for peer, all_of in ended.items()},
    }
