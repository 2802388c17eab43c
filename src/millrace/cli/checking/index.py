"""The index: LMDB's pages, every value against its stamp, every table against its sum."""

from __future__ import annotations

import mmap
import re

from millrace.cli.checking.report import Counted, Report
from millrace.cli.folder import INDEX, Folder
from millrace.errors import MillraceError
from millrace.store.cells import Cells
from millrace.store.inspect import Inspection, ReadOnlyCells, check_pages

FILE = f"{INDEX}/data.mdb"

_PAGE = re.compile(r"\bpage (\d+)")


def check_index(folder: Folder, report: Report) -> Inspection | None:
    """Verify the index; returns it open if nothing is wrong with it."""
    if not (folder.path / FILE).exists():
        # An engine would begin a new one, and read the whole log for it.
        return _opened(folder, folder.cells(is_in_use=False), report)
    findings = check_pages(folder.path / INDEX)
    for finding in findings:
        page = _PAGE.search(finding)
        report.found(FILE, int(page[1]) * mmap.PAGESIZE if page else None, finding)
    if findings:
        return None
    try:
        cells = ReadOnlyCells(folder.path / INDEX, is_in_use=False)
    except MillraceError as error:
        report.found_error(error, FILE)
        return None
    damaged = cells.check()
    for finding in damaged:
        report.found(FILE, None, finding)
    report.tell(Counted(cells=sum(cells.counts().values())))
    if damaged:
        cells.close()
        return None
    return _opened(folder, cells, report)


def _opened(folder: Folder, cells: Cells, report: Report) -> Inspection | None:
    try:
        return Inspection(folder.disk, cells)
    except MillraceError as error:
        cells.close()
        report.found_error(error, FILE)
        return None
