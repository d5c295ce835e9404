"""The command line of the tests of `cli`, whose store these tests look into."""

from __future__ import annotations

from tests.cli.conftest import any_cli, cli

__all__ = ["any_cli", "cli"]
