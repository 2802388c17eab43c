"""A process that attacks: `python -m tests.server.hostile.attack PORT SCALE [NAME]`.

The token comes by standard input. With a name, that attack is made once; otherwise all are made in
turn until the process is ended. The name of each attack is printed when it is over.
"""

from __future__ import annotations

import itertools
import sys

from tests.server.hostile.inputs import ATTACKS, Target


def main() -> None:
    """Attack as the command line says."""
    port, scale, *names = sys.argv[1:]
    target = Target(int(port), sys.stdin.read(), float(scale))
    for name in names or itertools.cycle(ATTACKS):
        try:
            ATTACKS[name](target)
            print(name, flush=True)
        except (ConnectionError, TimeoutError) as error:
            print(f"{name}: {error!r}", flush=True)


if __name__ == "__main__":
    main()
