"""`scripts/ensure-services` is quiet when all is there, and says in one line what is not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT

TOOLS = ("bash", "env")
#: Each program that is looked for, and the package that has it.
PACKAGES = {
    "redis-server": "redis-server",
    "openssl": "openssl",
    "initdb": "postgresql",
    "pgbouncer": "pgbouncer",
    "patroni": "patroni",
    "etcd": "etcd-server",
}
#: Looked for in other places than the path too, where a test cannot hide it.
NEVER_HIDDEN = {"initdb", "pgbouncer"}


def run_with(directory: Path, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs it where only these programs exist, each a shell script."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found
        (directory / tool).symlink_to(found)
    for name, text in programs.items():
        program = directory / name
        program.write_text(f"#!/usr/bin/env bash\n{text}\n")
        program.chmod(0o755)
    return subprocess.run(
        [directory / "bash", ROOT / "scripts/ensure-services"],
        env={"PATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def all_but(*missing: str) -> dict[str, str]:
    return {name: "exit 9" for name in PACKAGES if name not in missing}


def test_quiet_when_all_is_there(tmp_path: Path) -> None:
    done = run_with(tmp_path, {**all_but(), "apt-get": "exit 9"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("missing", sorted(PACKAGES.keys() - NEVER_HIDDEN))
def test_one_line_when_it_must_not_install(tmp_path: Path, missing: str) -> None:
    done = run_with(tmp_path, {**all_but(missing), "id": "echo 1000", "apt-get": "exit 9"})
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"the tests start servers of their own; please install: {PACKAGES[missing]}\n"


def test_one_line_when_it_cannot_install(tmp_path: Path) -> None:
    done = run_with(tmp_path, {**all_but("redis-server", "etcd"), "id": "echo 0"})
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "the tests start servers of their own; please install: redis-server etcd-server\n"
