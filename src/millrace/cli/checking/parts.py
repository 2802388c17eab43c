"""All parts of a check, one after the other."""

from __future__ import annotations

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
    try:
        for part in parts:
            report.tell(Began(part))
            match part:
                case Part.INDEX:
                    store = check_index(folder, report)
                case Part.LOG:
                    check_log(folder, report, store)
                case Part.SEALED:
                    check_sealed(folder, report, store)
                case Part.SHARDS if store is not None:
                    check_shards(folder, report, store)
                case Part.SHARDS:
                    report.tell(Skipped("rows and counters need the index: not checked"))
                case _:
                    assert_never(part)
    finally:
        if store is not None:
            store.close()
