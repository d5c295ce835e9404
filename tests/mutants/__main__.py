"""Plants one bug after the other into a copy of the tree, and runs the nearest tests: can they fail?"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutants.catalogue import Mutant, mutants
from tests.support import ROOT

#: What a copy of the tree has.
COPIED: Final = ("src", "tests", "docs", "examples", "deploy", "chaos", "scripts", "pyproject.toml", "README.md")
#: Of one mutant; tests that are still running are taken to hang.
DEFAULT_LIMIT_S: Final = 240
#: Of one test of a mutant.
TEST_LIMIT_S: Final = 60
STOP_S: Final = 15
ALL_PASSED, SOME_FAILED = 0, 1


class Fate(StrEnum):
    """What became of a planted bug."""

    KILLED = "killed"
    HUNG = "hung"  # caught too, by the time limit of the tests
    SURVIVED = "survived"
    ERROR = "error"  # the tests did not run


@dataclass(frozen=True)
class Outcome:
    """A planted bug, and what its tests said."""

    mutant: Mutant
    fate: Fate
    seconds: float
    output: str

    @property
    def caught(self) -> bool:
        """Whether CI would have noticed."""
        return self.fate in {Fate.KILLED, Fate.HUNG}


class Copy:
    """A copy of the tree in which bugs are planted, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
            else:
                shutil.copy2(source, folder / name)
        self._stamp_s = int(time.time())

    @contextlib.contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The tree with this bug in it."""
        place = mutant.place(self.folder)
        before = place.read_text("utf-8")
        self._write(place, mutant.mutated(before))
        try:
            yield
        finally:
            self._write(place, before)

    def _write(self, place: Path, text: str) -> None:
        place.write_text(text, "utf-8")
        # Bytecode is taken for that of the source if both have the same second and length.
        self._stamp_s += 2
        os.utime(place, (self._stamp_s, self._stamp_s))

    def pytest(self, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """What pytest exits with, None if it had to be stopped, and what it printed."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT_S}"]
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self.folder}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None, _stopped(process)
        return process.returncode, output


def _stopped(process: subprocess.Popen[str]) -> str:
    """Ends pytest in a way that lets it end its servers, or at least kills it."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=STOP_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def try_out(mutant: Mutant, copy: Copy, limit_s: float) -> Outcome:
    """Plants the bug and runs its tests."""
    began = time.monotonic()
    with copy.planted(mutant):
        code, output = copy.pytest(mutant.tests, limit_s)
    fates = {ALL_PASSED: Fate.SURVIVED, SOME_FAILED: Fate.KILLED, None: Fate.HUNG}
    return Outcome(mutant, fates.get(code, Fate.ERROR), time.monotonic() - began, output)


def check_sound(chosen: Sequence[Mutant], copy: Copy) -> None:
    """A test that fails without a bug too would kill every mutant."""
    place = subprocess.run(
        [sys.executable, "-c", "import holdfast; print(holdfast.__file__)"],
        cwd=copy.folder,
        env={**os.environ, "PYTHONPATH": str(copy.folder / "src")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert Path(place.strip()).is_relative_to(copy.folder), f"the tests would not run the copy but {place}"
    selections = list(dict.fromkeys(mutant.tests for mutant in chosen))
    print(f"{len(selections)} selections of tests, without a bug:", flush=True)
    for tests in selections:
        code, output = copy.pytest(tests, 2 * DEFAULT_LIMIT_S)
        if code != ALL_PASSED:
            sys.exit(f"{output}\nthese tests do not pass without a bug: {' '.join(tests)}")


def run(chosen: Sequence[Mutant], jobs: int, limit_s: float, *, trusting: bool) -> list[Outcome]:
    """Tries out all of them, some at the same time."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number)))
        if not trusting:
            copy = copies.get()
            check_sound(chosen, copy)
            copies.put(copy)

        def one(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                outcome = try_out(mutant, copy, limit_s)
            finally:
                copies.put(copy)
            print(f"{outcome.fate:<9}{mutant!s:<20}{outcome.seconds:5.1f} s  {mutant.about}", flush=True)
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, chosen))


def report(outcomes: Sequence[Outcome]) -> int:
    """The kill rate by package, and each one that was not caught; 1 if there is one."""
    print(f"\n{'package':<14}{'caught':>8}{'of':>6}{'rate':>8}  not caught")
    packages = list(dict.fromkeys(outcome.mutant.package for outcome in outcomes))
    for package in [*packages, "all"]:
        some = [each for each in outcomes if package in {each.mutant.package, "all"}]
        caught = sum(each.caught for each in some)
        missed = "" if package == "all" else " ".join(each.mutant.id for each in some if not each.caught)
        print(f"{package:<14}{caught:>8}{len(some):>6}{caught / len(some):>8.0%}  {missed}".rstrip())
    for outcome in outcomes:
        if outcome.fate is Fate.ERROR:
            print(f"\n{outcome.mutant}: the tests did not run:\n{outcome.output[-3000:]}")
    return int(not all(outcome.caught for outcome in outcomes))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("chosen", nargs="*", help="packages (core) or mutants (core-L01); all if there are none")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at the same time")
    parser.add_argument("--limit", type=float, default=DEFAULT_LIMIT_S, help="seconds for the tests of one mutant")
    parser.add_argument("--trusting", action="store_true", help="do not run the tests without a bug first")
    options = parser.parse_args()
    known = mutants()
    names = {name for mutant in known for name in (mutant.package, str(mutant))}
    for unknown in set(options.chosen) - names:
        parser.error(f"{unknown}: there is no such package or mutant")
    wanted = set(options.chosen)
    chosen = [mutant for mutant in known if not wanted or wanted & {mutant.package, str(mutant)}]
    return report(run(chosen, options.jobs, options.limit, trusting=options.trusting))


if __name__ == "__main__":
    sys.exit(main())
