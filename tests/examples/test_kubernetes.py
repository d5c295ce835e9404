"""The manifests of Kubernetes name only what exists: options, routes, fields, secrets and ports."""

from __future__ import annotations

import http.client
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.examples.files import IMAGES, KUBERNETES, check_holdfast_call, check_page, documents
from tests.server.setting import Client, sqlite_server
from tests.support import eventually, free_port, run_worker

README = (KUBERNETES / "README.md").read_text(encoding="utf-8")
(KUSTOMIZATION,) = documents(KUBERNETES / "kustomization.yaml")
OBJECTS = [document for name in KUSTOMIZATION["resources"] for document in documents(KUBERNETES / name)]


def the(kind: str, name: str) -> Any:
    (found,) = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def container(deployment: str) -> Any:
    (found,) = the("Deployment", deployment)["spec"]["template"]["spec"]["containers"]
    return found


def trigger() -> Any:
    (found,) = the("ScaledObject", "images-worker")["spec"]["triggers"]
    return found


def test_every_file_is_part_of_the_whole() -> None:
    assert {path.name for path in KUBERNETES.glob("*.yaml")} == {*KUSTOMIZATION["resources"], "kustomization.yaml"}


@pytest.mark.parametrize(("deployment", "port"), [("holdfast-server", "http"), ("images-worker", "health")])
def test_the_probes_ask_where_health_is_answered(deployment: str, port: str) -> None:
    asked = container(deployment)
    options = check_holdfast_call(asked["command"])
    address = options["health"] if deployment == "images-worker" else f"{options['host']}:{options['port']}"
    assert asked["ports"] == [{"name": port, "containerPort": int(address.rpartition(":")[2])}]
    assert address.startswith("0.0.0.0:"), "the kubelet does not come over the loopback address"
    assert {name: asked[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "startupProbe": {"path": "/healthz", "port": port},
        "livenessProbe": {"path": "/healthz", "port": port},
        "readinessProbe": {"path": "/readyz", "port": port},
    }


def test_a_worker_is_not_killed_before_its_grace_period_is_over() -> None:
    pod = the("Deployment", "images-worker")["spec"]["template"]["spec"]
    assert (
        pod["terminationGracePeriodSeconds"] * 1000
        > check_holdfast_call(container("images-worker")["command"])["grace_ms"]
    )


@pytest.mark.parametrize("deployment", ["holdfast-server", "images-worker"])
def test_nothing_runs_as_root_and_selectors_fit(deployment: str) -> None:
    spec = the("Deployment", deployment)["spec"]
    assert spec["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    # A service of the name redis would set REDIS_PORT, which the image service reads, to tcp://…
    assert spec["template"]["spec"]["enableServiceLinks"] is False
    assert container(deployment)["image"] in {image["name"] for image in KUSTOMIZATION["images"]}


def test_workers_and_keda_call_the_server_by_the_name_of_its_service() -> None:
    service = the("Service", "holdfast")
    server = the("Deployment", "holdfast-server")["spec"]["template"]["metadata"]["labels"]
    (port,) = service["spec"]["ports"]
    assert service["spec"]["selector"] == server
    urls = {each["name"]: each.get("value") for each in container("images-worker")["env"]}
    assert urls["HOLDFAST_URL"] == f"http://holdfast:{port['port']}"
    address = urlsplit(trigger()["metadata"]["url"])
    assert address.netloc == f"holdfast.{KUSTOMIZATION['namespace']}.svc.cluster.local:{port['port']}"


def test_every_secret_that_is_used_is_made_on_the_page() -> None:
    used = {(match[0], match[1]) for match in re.findall(r"name: (holdfast-\w+), key: (\w+)", _text())}
    made = {
        (name, key)
        for name, literals in re.findall(r"secret generic (\S+)((?:[ \\\n]+--from-literal=.*)+)", README)
        for key in re.findall(r"--from-literal=(\w+)=", literals)
    }
    assert used == made


def test_keda_gets_its_number_from_the_server(tmp_path: Path) -> None:
    asked = trigger()["metadata"]
    with sqlite_server(tmp_path) as server:
        client = Client(server.port)
        for _ in range(3):
            client.enqueue("images", type="process_image")
        client.reserve("images")
        value = client.get(urlsplit(asked["url"]).path)[asked["valueLocation"]]
        client.close()
    assert value == 3
    assert int(asked["targetValue"]) == check_holdfast_call(container("images-worker")["command"])["concurrency"]
    assert (
        trigger()["authenticationRef"]["name"] == the("TriggerAuthentication", "holdfast-scaling")["metadata"]["name"]
    )


def test_the_worker_of_the_manifest_works_through_a_server(tmp_path: Path) -> None:
    _, _, app, *options = container("images-worker")["command"]
    port = free_port()
    here = [option.replace("0.0.0.0:8081", f"127.0.0.1:{port}") for option in options]
    env = {"HOLDFAST_TOKEN": "hf_any", "WORK_SECONDS": "0", "FAILURE_RATE": "0"}
    with sqlite_server(tmp_path) as server, run_worker(app, server.url, *here, cwd=IMAGES, env=env):
        client = Client(server.port)
        arguments = {"image_url": "https://example.com/cat.png"}
        task_id = client.enqueue("images", type="process_image", arguments=arguments)
        assert client.get(f"/v1/tasks/{task_id}?wait=15s")["state"] == "succeeded"
        client.close()
        assert eventually(lambda: _get(port, "/readyz") == 200, what="the worker is ready")


def _get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_every_holdfast_command_of_the_page_exists() -> None:
    assert check_page(KUBERNETES / "README.md") == 3


def _text() -> str:
    return "\n".join((KUBERNETES / name).read_text(encoding="utf-8") for name in KUSTOMIZATION["resources"])
