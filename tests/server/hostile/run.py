"""`make hostile SECONDS=60`: one tenant attacks a server while another works.

`alice` publishes, leases and settles, first undisturbed, then while `mallory` sends the inputs of
`inputs.py` one after the other from a process of her own. The run fails if a message of alice's
that was acknowledged is lost, if her 99th percentile grows tenfold, if the server's processes hold
more than they may, or if the server ends, is restarted or logs an error.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from millrace import limits
from millrace.server.auth.access import TOKEN_BYTES, digest_of, make_token
from tests.server.hostile.inputs import ATTACKS, Target, prepare
from tests.server.hostile.victim import Victim
from tests.server.load.gauge import holding
from tests.server.server_process import Process, children

SLOWDOWN_MAX = 10.0
"""The 99th percentile of others may grow by this factor under attack."""

UNDISTURBED_SHARE = 0.25
"""The share of the time in which nobody attacks."""

RSS_GROWTH_BYTES_MAX = (
    limits.HTTP_BODIES_BYTES_MAX + limits.HTTP_UNSENT_BYTES_MAX + limits.INBOX_BYTES_MAX
)
"""Bodies, answers and the inbox have bounds of their own; nothing else may grow with requests."""

CONFIG = """
[users.alice]
rules = ["allow * alice/*"]
tokens = ["sha256:{alice}"]

[users.mallory]
rules = ["allow * mallory/*"]
tokens = ["sha256:{mallory}"]
"""

SAMPLE_SECONDS = 0.1


@dataclass(slots=True)
class Outcome:
    """What was measured."""

    calm_p99: float = 0.0
    hostile_p99: float = 0.0
    rounds: int = 0
    acknowledged: int = 0
    lost: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    rss_before: int = 0
    rss_peak: int = 0
    attacks: int = 0
    attack_ended: int | None = 0
    errors: str = ""

    @property
    def slowdown(self) -> float:
        """Return the 99th percentile under attack, as a multiple of the undisturbed one."""
        return self.hostile_p99 / self.calm_p99

    def faults(self, slowdown_max: float = SLOWDOWN_MAX) -> list[str]:
        """Return a line for each expectation that was not met."""
        faults: list[str] = []
        if self.lost:
            faults.append(f"{len(self.lost)} acknowledged messages are lost")
        if self.slowdown > slowdown_max:
            faults.append(f"p99 grew by the factor {self.slowdown:.1f}, up to {slowdown_max:g} may")
        grown = self.rss_peak - self.rss_before
        if grown > RSS_GROWTH_BYTES_MAX:
            faults.append(f"memory grew by {grown >> 20} MiB, {RSS_GROWTH_BYTES_MAX >> 20} may")
        if self.refused:
            faults.append(f"{len(self.refused)} requests of others failed: {self.refused[:3]}")
        if self.attack_ended is not None:
            faults.append(f"the attacker ended early, with {self.attack_ended}")
        if self.attacks < len(ATTACKS):
            faults.append(f"only {self.attacks} of {len(ATTACKS)} attacks were made")
        if "Traceback" in self.errors:
            faults.append(f"the server logged an error: {self.errors[-3000:]}")
        return faults

    def report(self) -> str:
        """Return the figures in one line."""
        return (
            f"{self.rounds} rounds of publish, lease and settle beside {self.attacks} attacks: "
            f"p99 {self.calm_p99 * 1000:.1f} ms undisturbed, {self.hostile_p99 * 1000:.1f} ms "
            f"attacked (factor {self.slowdown:.1f}); {self.acknowledged} acknowledged, "
            f"{len(self.lost)} lost; memory {self.rss_before >> 20} MiB before, "
            f"{self.rss_peak >> 20} MiB at most"
        )


def run(folder: Path, seconds: float, *, frontends: int = 0, scale: float = 1.0) -> Outcome:
    """Serve a folder of its own, and attack it for most of the time."""
    alice, mallory = (make_token(secrets.token_bytes(TOKEN_BYTES)) for _ in range(2))
    config = folder / "millrace.toml"
    config.write_text(CONFIG.format(alice=digest_of(alice).hex(), mallory=digest_of(mallory).hex()))
    outcome = Outcome()
    with (
        ExitStack() as stack,
        (folder / "stderr").open("ab") as errors,
        Process(
            folder / "data", "--config", config, "--frontends", frontends, errors=errors
        ) as server,
    ):
        victim = stack.enter_context(closing(Victim(server.port, alice)))
        victim.make_queue()
        prepare(Target(server.port, mallory))
        victim.work_for(seconds * UNDISTURBED_SHARE)
        outcome.calm_p99 = victim.p99_seconds()
        outcome.rss_before = outcome.rss_peak = _held(server)
        with Attacker(server.port, mallory, scale) as attacker:
            end = time.monotonic() + seconds * (1 - UNDISTURBED_SHARE)
            # On a slow machine the run takes longer, until each attack was made once.
            patience = end + 20 * len(ATTACKS)
            sampler = _Sampler(server, outcome)
            victim.work(
                lambda: (
                    time.monotonic() > end
                    and (attacker.made >= len(ATTACKS) or time.monotonic() > patience)
                )
            )
            sampler.stop()
            outcome.attack_ended = attacker.ended()
            outcome.attacks = attacker.made
        outcome.rounds = len(victim.seconds)
        outcome.hostile_p99 = victim.p99_seconds()
        outcome.acknowledged = len(victim.acknowledged)
        outcome.refused = victim.refused
        outcome.lost = victim.lost()
        if server.stop() != 0:
            outcome.refused.append("the server did not stop with 0")
    # What was acknowledged is there after a restart, too.
    with ExitStack() as stack, Process(folder / "data", "--config", config) as server:
        again = stack.enter_context(closing(Victim(server.port, alice)))
        again.acknowledged, again.settled = victim.acknowledged, victim.settled
        outcome.lost |= again.lost()
    outcome.errors = (folder / "stderr").read_text(errors="replace")
    return outcome


class Attacker:
    """The process that attacks, and the number of attacks that it has made."""

    def __init__(self, port: int, token: str, scale: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.hostile.attack", str(port), str(scale)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        # An argument of a process is visible to every user of the machine.
        self._process.stdin.write(token)
        self._process.stdin.close()
        self.made = 0
        self._reader = threading.Thread(target=self._count)

    def __enter__(self) -> Attacker:
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ended(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._process.poll()

    def _count(self) -> None:
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            self.made += 1


class _Sampler:
    """Samples the memory of a server's processes in a thread."""

    def __init__(self, server: Process, outcome: Outcome) -> None:
        self._server, self._outcome = server, outcome
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self._outcome.rss_peak = max(self._outcome.rss_peak, _held(self._server))

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()


def _held(server: Process) -> int:
    """Return the anonymous memory of the server and its front ends."""
    total = 0
    for pid in (server.pid, *children(server.pid)):
        try:
            total += holding(pid).memory_bytes
        except FileNotFoundError:
            continue
    return total


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, help="on the disk to be tested; not kept")
    arguments = parser.parse_args()
    failed = 0
    for name, frontends in (("one process", 0), ("two front ends", 2)):
        with tempfile.TemporaryDirectory(
            prefix="millrace-hostile-", dir=arguments.folder
        ) as folder:
            outcome = run(Path(folder), arguments.seconds, frontends=frontends)
        print(f"{name}: {outcome.report()}", flush=True)
        for fault in outcome.faults():
            failed = 1
            print(f"  {fault}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
