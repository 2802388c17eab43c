"""The child: `python -m millrace.cli.checking PATH PART...`; it reports on its standard output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import assert_never

from millrace.cli.checking.index import check_index
from millrace.cli.checking.log import check_log
from millrace.cli.checking.report import Began, Part, Report, Skipped
from millrace.cli.checking.sealed import check_sealed
from millrace.cli.checking.shards import check_shards
from millrace.cli.folder import Folder
from millrace.store.inspect import Inspection


def run(folder: Folder, report: Report, parts: list[Part]) -> None:
    """Do these parts; without the index among them, it counts as damaged."""
    store: Inspection | None = None
    for part in parts:
        report.tell(Began(part))
        match part:
            case Part.INDEX:
                store = check_index(folder, report)
            case Part.LOG:
                check_log(folder, report, store)
            case Part.SEALED:
                check_sealed(folder, report, store)
            case Part.SHARDS:
                if store is not None:
                    check_shards(folder, report, store)
                else:
                    report.tell(Skipped("rows and counters need the index: not checked"))
            case _:
                assert_never(part)


if __name__ == "__main__":
    run(Folder(Path(sys.argv[1])), Report(), [Part(name) for name in sys.argv[2:]])
