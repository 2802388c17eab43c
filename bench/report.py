"""How every measurement is told: a table for people, one JSON object per line for programs."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from millrace.wal.write_ahead_log import WriteAheadLog


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report. `ratio` is what `reach` bounds."""

    id: str
    what: str
    value: float
    unit: str
    baseline: str
    ratio: float | None
    reach: str
    ok: bool | None
    extra: str = ""


class Usage:
    """CPU seconds, syncs and bytes written since it was made; the disk should be quiet otherwise.

    Zero-filling of new log segments is told apart: it happens once per segment, ahead of need.
    """

    def __init__(self, log: WriteAheadLog) -> None:
        self._log = log
        self._cpu = _cpu()
        self._written = _written()
        self._before = log.statistics()

    def per_million(self, messages: int) -> str:
        """The costs of a million messages, as text."""
        scale = 1e6 / messages
        syncs = self._log.statistics().syncs - self._before.syncs
        return (
            f"per million: {(_cpu() - self._cpu) * scale:.2f} CPU s, "
            f"{self.written() * scale / 1e6:,.0f} MB written, {syncs * scale:,.0f} syncs of the log"
        )

    def zeroed(self) -> int:
        """Bytes that filled new segments."""
        return self._log.statistics().zeroed_bytes - self._before.zeroed_bytes

    def written(self) -> int:
        """Bytes that were handed to the disk, zero-filling apart."""
        return _written() - self._written - self.zeroed()


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _written() -> int:
    """Bytes that the device under the build folder has written, by anyone.

    The process's own count is taken only where there is no such device: it counts whole folios,
    which are up to 2 MB each.
    """
    device = Path("build").stat().st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    if stat.exists():
        return int(stat.read_text().split()[6]) * 512
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def at_least(bound: float) -> tuple[str, Callable[[float], bool]]:
    return f">= {bound:g}", lambda ratio: ratio >= bound


def at_most(bound: float) -> tuple[str, Callable[[float], bool]]:
    return f"<= {bound:g}", lambda ratio: ratio <= bound


def median(values: list[float]) -> float:
    return statistics.median(values)


def print_table(results: list[Result]) -> None:
    print(f"\n{machine()}\n")
    print(f"{'id':<22} {'value':>14} {'unit':<12} {'ratio':>8}  {'reach':<9} {'ok':<4} what")
    for r in results:
        ratio = "" if r.ratio is None else f"{r.ratio:.2f}"
        ok = "" if r.ok is None else ("yes" if r.ok else "NO")
        print(
            f"{r.id:<22} {r.value:>14,.3f} {r.unit:<12} {ratio:>8}  {r.reach:<9} {ok:<4} "
            f"{r.what} [{r.baseline}]"
        )
        if r.extra:
            print(f"{'':<22} {r.extra}")


def write_json(results: list[Result], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for result in results:
            file.write(json.dumps(asdict(result)) + "\n")


def machine() -> str:
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )
