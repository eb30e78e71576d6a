"""The files in examples/container, which docs/guides/container.md explains."""

import re

import yaml

from official_bert_cli import load
from tests.conftest import ROOT

FOLDER = ROOT / "examples" / "container"
SERVE = {flag.name: flag for flag in load("serve").flags()}


def test_files_use_flags_of_the_server():
    for path in FOLDER.iterdir():
        settings = re.sub(r"^\s*#.*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        flags = set(re.findall(r"--(\w+_\w+|host|model)\b", settings))
        assert flags <= SERVE.keys(), path
        assert "model" in flags


def test_the_guide_shows_the_dockerfile():
    page = (ROOT / "docs" / "guides" / "container.md").read_text(encoding="utf-8")
    dockerfile = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE) in page


def test_the_server_may_drain_before_it_is_killed():
    deployment, service = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    drain_seconds = float(re.search(r"--drain_seconds=(\d+)", " ".join(container["args"]))[1])
    sleep_seconds = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > sleep_seconds + drain_seconds
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    user = re.findall(r"^USER (.*)$", (FOLDER / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[-1]
    assert container["securityContext"]["runAsNonRoot"]
    assert int(user) > 0, "Kubernetes compares only numbers with root"
    unit = (FOLDER / "bert.service").read_text(encoding="utf-8")
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]) > SERVE["drain_seconds"].default
