"""No Docker engine is needed to see that the files of the image service fit its code."""

from __future__ import annotations

import json
import re
import tomllib
from fnmatch import fnmatch

import pytest

from tests.examples.files import IMAGES, check_holdfast_call, check_page, compose
from tests.support import ROOT

DOCKERFILE = (IMAGES / "Dockerfile").read_text(encoding="utf-8")
SETTINGS = (IMAGES / "settings.py").read_text(encoding="utf-8")
README = (IMAGES / "README.md").read_text(encoding="utf-8")
READ = set(re.findall(r'(?:_number\(|_whole\(|environ\.get\()"([A-Z_]+)"', SETTINGS))
PROMISED = {"REDIS_HOST", "REDIS_PORT", "VISIBILITY_TIMEOUT", "HEARTBEAT_INTERVAL", "REAPER_INTERVAL", "MAX_RETRIES"}


def instruction(name: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)


def test_every_variable_that_the_service_promises_is_read_and_every_one_that_is_read_is_explained() -> None:
    assert PROMISED <= READ
    assert {name for name in READ if f"`{name}`" not in README} == set()


@pytest.mark.parametrize("service", ["api", "worker"])
def test_compose_sets_what_is_promised_and_nothing_that_nobody_reads(service: str) -> None:
    names = set(compose()["services"][service]["environment"])
    assert PROMISED <= names <= READ


def test_the_worker_of_compose_can_be_scaled_and_is_called_with_options_that_exist() -> None:
    worker = compose()["services"]["worker"]
    assert not {"ports", "container_name"} & worker.keys(), "two of them would be in each other's way"
    options = check_holdfast_call(worker["command"])
    assert options["queues"] is None, "it serves all queues of its app"
    assert int(worker["stop_grace_period"].rstrip("s")) * 1000 > options["grace_ms"]


def test_the_service_and_the_worker_answer_the_health_check_of_their_image() -> None:
    (check,) = instruction("HEALTHCHECK")
    services = compose()["services"]
    assert "http://127.0.0.1:8000/healthz" in check
    assert services["api"]["command"][-2:] == ["--port", "8000"]
    assert check_holdfast_call(services["worker"]["command"])["health"] == "127.0.0.1:8000"


def test_redis_in_compose_keeps_every_acknowledged_task_and_evicts_none() -> None:
    redis = compose()["services"]["redis"]
    flags = dict(zip(redis["command"][1::2], redis["command"][2::2], strict=True))
    assert flags == {"--appendonly": "yes", "--appendfsync": "always", "--maxmemory-policy": "noeviction"}
    (volume,) = redis["volumes"]
    assert volume.partition(":")[0] in compose()["volumes"]


def test_the_image_is_built_from_files_that_exist_and_does_not_run_as_root() -> None:
    for line in instruction("COPY"):
        assert [source for source in line.split()[:-1] if not (ROOT / source).exists()] == []
    assert instruction("USER") == ["10001"]
    assert instruction("STOPSIGNAL") == ["SIGTERM"]
    for service in ("api", "worker"):
        assert "image" not in compose()["services"][service], "two builds of one name fail at the first start"
        build = compose()["services"][service]["build"]
        assert (IMAGES / build["context"]).resolve() == ROOT
        assert ROOT / build["dockerfile"] == IMAGES / "Dockerfile"
    assert json.loads(instruction("CMD")[0]) == compose()["services"]["api"]["command"]


def test_the_image_installs_extras_that_exist() -> None:
    (extras,) = re.findall(r"\.\[([a-z,]+)\]", DOCKERFILE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_every_holdfast_command_of_the_page_exists() -> None:
    assert check_page(IMAGES / "README.md") == 3


def test_what_is_copied_is_not_ignored() -> None:
    ignored = (IMAGES / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    copied = [source.removeprefix("./") for line in instruction("COPY") for source in line.split()[:-1]]
    assert [source for source in copied if not any(fnmatch(source, pattern) for pattern in kept)] == []
