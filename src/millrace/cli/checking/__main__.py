"""The child: `python -m millrace.cli.checking PATH PART...`; it reports on its standard output."""

from __future__ import annotations

import sys
from pathlib import Path

from millrace.cli.checking.parts import run
from millrace.cli.checking.report import Part, Report
from millrace.cli.folder import Folder

if __name__ == "__main__":
    try:
        run(Folder(Path(sys.argv[1])), Report(), [Part(name) for name in sys.argv[2:]])
    except KeyboardInterrupt:
        # The parent was interrupted as well, and says so.
        sys.exit(130)
