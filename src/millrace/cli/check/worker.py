"""The child process of a check: `python -m millrace.cli.check.worker PATH PHASE...`.

It reports on its standard output.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import assert_never

from millrace.cli.check.files import check_index, check_log, check_sealed
from millrace.cli.check.report import (
    CheckPhase,
    CheckReporter,
    PhaseSkipped,
    PhaseStarted,
)
from millrace.cli.check.shards import check_shards
from millrace.cli.folder import Folder
from millrace.store.read_only_store import ReadOnlyStore


def run_phases(folder: Folder, report: CheckReporter, parts: list[CheckPhase]) -> None:
    """Run these phases; without the index phase among them, the index counts as damaged."""
    store: ReadOnlyStore | None = None
    try:
        for part in parts:
            report.tell(PhaseStarted(part))
            match part:
                case CheckPhase.INDEX:
                    store = check_index(folder, report)
                case CheckPhase.LOG:
                    check_log(folder, report, store)
                case CheckPhase.SEALED:
                    check_sealed(folder, report, store)
                case CheckPhase.SHARDS if store is not None:
                    check_shards(folder, report, store)
                case CheckPhase.SHARDS:
                    report.tell(PhaseSkipped("rows and counters need the index: not checked"))
                case _:
                    assert_never(part)
    finally:
        if store is not None:
            store.close()


if __name__ == "__main__":
    try:
        run_phases(
            Folder(Path(sys.argv[1])), CheckReporter(), [CheckPhase(name) for name in sys.argv[2:]]
        )
    except KeyboardInterrupt:
        # The parent was interrupted as well, and reports it.
        sys.exit(130)
