"""The long run: `python -m chaos --count 50 --seed 1 --deployment cluster`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import get_args

from chaos.deployments import Kind, deployed
from chaos.run import faults_of, run_faults


def main() -> int:
    """0 if every promise was kept, 1 if not."""
    wanted = _arguments()
    seed = wanted.seed if wanted.seed is not None else Random().randrange(1_000_000)  # noqa: S311
    print(f"{wanted.count} faults on {wanted.deployment}, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as directory, deployed(wanted.deployment, seed) as place:
        faults = faults_of(place)
        if wanted.fault and wanted.fault not in faults:
            print(f"{wanted.deployment} has the faults {', '.join(faults)}, not {wanted.fault}")
            return 2
        plan = [wanted.fault] * wanted.count if wanted.fault else Random(seed).choices(faults, k=wanted.count)  # noqa: S311
        report = run_faults(place, plan, seed=seed, directory=Path(directory))
    print(report)
    return 1 if report.violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description="Faults under load, and a check of every promise."
    )
    parser.add_argument("--count", type=int, default=20, help="how many faults")
    parser.add_argument("--seed", type=int, help="which faults, and which orders; drawn if not given")
    parser.add_argument("--deployment", choices=get_args(Kind), default="cluster")
    parser.add_argument("--fault", help="only this one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
