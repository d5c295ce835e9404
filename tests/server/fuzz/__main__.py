"""The long run: `python -m tests.server.fuzz --store redis --requests 20000 --seed 1`; then, or with `--load` only, a
load of large bodies beside workers that must be served.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.server.fuzz.campaign import Campaign
from tests.server.fuzz.fuzzed_server import check_aftermath, fuzzed_server
from tests.server.fuzz.load import run_load
from tests.servers.urls import STORES, fresh_store


def main() -> int:
    """0 if every answer was as the document says and nothing came to harm, 1 if not."""
    wanted = _arguments()
    return _load(wanted) or (0 if wanted.load else _fuzz(wanted))


def _load(wanted: argparse.Namespace) -> int:
    print(f"large bodies on {wanted.store} for {wanted.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-load-") as name:
        directory = Path(name)
        report = run_load(fresh_store(wanted.store, directory), directory, wanted.seconds, wanted.lease)
    print(report, flush=True)
    return 0 if report.is_good else 1


def _fuzz(wanted: argparse.Namespace) -> int:
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("fuzz").setLevel(logging.INFO)
    seed = wanted.seed if wanted.seed is not None else Random().randrange(1_000_000)
    print(f"{wanted.requests:,} requests on {wanted.store}, seed {seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-fuzz-") as directory,
        fuzzed_server(wanted.store, Path(directory)) as server,
    ):
        token = server.token("admin")
        tally = Campaign(server.port, token, seed).run(wanted.requests, examples=wanted.examples, coverage=True)
        print(tally.table(), *tally.findings, sep="\n")
        try:
            print(f"{check_aftermath(server, token):,} tasks are as they should be, and so is the server's log")
        except AssertionError as error:
            print(f"the server or its store has come to harm:\n{error}")
            return 1
    return 1 if tally.findings else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.server.fuzz", description="Requests made from the OpenAPI document, to a real server."
    )
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--requests", type=int, default=20_000, help="at least so many")
    parser.add_argument("--examples", type=int, default=50, help="so many for each operation before the next one")
    parser.add_argument("--load", action="store_true", help="the load of large bodies, and nothing else")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long large bodies are sent")
    parser.add_argument("--lease", type=float, default=6.0, help="the lease of the workers beside them, in seconds")
    parser.add_argument("--seed", type=int, help="which requests; drawn if not given")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
