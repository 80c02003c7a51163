"""Seeds of the simulations that draw by `random.Random`: the same in each test run, other ones in `make explore`."""

import os
from typing import Final

FIRST_SEED: Final = "KMIGRATE_FIRST_SEED"


def seeds(count: int) -> range:
    """`count` seeds in a row, from 0, or from the one that the explorer sets."""
    first = int(os.environ.get(FIRST_SEED, "0"))
    return range(first, first + count)
