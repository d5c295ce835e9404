"""`holdfast server` whose requests wait no longer than a fuzzer can bear: `python -m tests.server.fuzz.server MS …`."""

from __future__ import annotations

import sys

from holdfast.stores.remote import limits


def main() -> None:
    """The real command; only the longest wait is another one."""
    vars(limits)["LONGEST_WAIT_MS"] = int(sys.argv.pop(1))  # before the server is imported, which reads it once
    from holdfast.cli.main import main as holdfast

    sys.argv.insert(1, "server")
    holdfast()


if __name__ == "__main__":
    main()
