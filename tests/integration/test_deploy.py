"""deploy/: every file is read by the program that it is for, where that is installed, and checked for what we rely on.

No container is started here. Programs of Debian: promtool (prometheus), amtool (prometheus-alertmanager), nginx, caddy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from etude.bootstrap.serving import settings_here
from etude.serving.metrics import METRICS
from tests.test_docs import ROOT

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus/etude.rules.yml"
ALERTS = {
    "EtudeTrainingFailures": "warning",
    "EtudeValidationFailed": "warning",
    "EtudeRolledBack": "critical",
    "EtudeCollectionErrors": "critical",
    "EtudeBusLost": "critical",
    "EtudeDown": "critical",
    "EtudeNotReady": "warning",
}
NAMES = {
    f"{metric.name}{suffix}"
    for metric in METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
}
NAME = re.compile(r"\b(?:agent_rl|etude|process)_[a-z_]+\b")


def run(*command: str | Path, cwd: Path | None = None, package: str) -> str:
    """What a program says of a file that it accepts; the test is skipped, visibly, where it is not installed."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed (Debian: apt install {package}): its files were not checked by it")
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def read(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text())


def expressions() -> dict[str, str]:
    rules = [rule for group in read("prometheus/etude.rules.yml")["groups"] for rule in group["rules"]]
    found = {rule.get("alert", rule.get("record")): rule["expr"] for rule in rules}
    for path in sorted((DEPLOY / "grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            found |= {f"{path.stem} {panel['title']} {t['refId']}": t["expr"] for t in panel["targets"]}
    return found


def test_prometheus_reads_its_files() -> None:
    assert "10 rules found" in run("promtool", "check", "rules", RULES, package="prometheus")
    config = DEPLOY / "prometheus/prometheus.yml"
    assert "SUCCESS" in run("promtool", "check", "config", "--syntax-only", config, package="prometheus")


def test_every_alert_fires_when_it_should_and_not_otherwise() -> None:
    tests = read("prometheus/etude.tests.yml")["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for alert in ALERTS:
        assert {bool(case["exp_alerts"]) for case in cases if case["alertname"] == alert} == {True, False}, alert
    assert "SUCCESS" in run("promtool", "test", "rules", DEPLOY / "prometheus/etude.tests.yml", package="prometheus")


@pytest.mark.parametrize("always", ["vector(1)", "vector(0) > 1"])
def test_the_tests_of_every_alert_can_fail(always: str, tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    rules = read("prometheus/etude.rules.yml")
    for rule in rules["groups"][1]["rules"]:
        rule["expr"] = always
    (tmp_path / RULES.name).write_text(yaml.safe_dump(rules))
    shutil.copy(DEPLOY / "prometheus/etude.tests.yml", tmp_path)
    command = ["promtool", "test", "rules", "etude.tests.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert set(re.findall(r"alertname: (\w+)", done.stdout + done.stderr)) == set(ALERTS)


def test_alerts_say_how_bad_it_is_and_where_to_read_on() -> None:
    rules = read("prometheus/etude.rules.yml")["groups"][1]["rules"]
    assert {rule["alert"]: rule["labels"]["severity"] for rule in rules} == ALERTS
    page = (ROOT / "docs/21-operating.md").read_text()
    for rule in rules:
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (file, anchor) == ("docs/21-operating.md", rule["alert"].lower())
        assert f"### {rule['alert']}\n" in page


def test_rules_and_dashboards_name_metrics_that_exist() -> None:
    for where, expression in expressions().items():
        unknown = set(NAME.findall(re.sub(r'"[^"]*"', "", expression))) - NAMES
        assert not unknown, where


def test_alertmanager_pages_for_what_is_critical() -> None:
    config = DEPLOY / "alertmanager/alertmanager.yml"
    assert "SUCCESS" in run("amtool", "check-config", config, package="prometheus-alertmanager")
    routes = {
        severity: run(
            *("amtool", "config", "routes", "test", f"--config.file={config}", f"severity={severity}"),
            package="prometheus-alertmanager",
        )
        for severity in ("warning", "critical", "other")
    }
    for severity, receivers in (("critical", "page,chat"), ("warning", "chat"), ("other", "chat")):
        assert receivers in routes[severity].splitlines()
    route = read("alertmanager/alertmanager.yml")["route"]
    assert (route["repeat_interval"], route["routes"][0]["repeat_interval"]) == ("12h", "30m")


def test_the_dashboards_have_the_panels_of_the_source_document() -> None:
    boards = {path.stem: json.loads(path.read_text()) for path in (DEPLOY / "grafana/dashboards").glob("*.json")}
    titles = {name: [panel["title"] for panel in board["panels"]] for name, board in boards.items()}
    assert titles["training"] == [
        *("Trajectory collection rates", "Reward distribution", "Training job status", "Resource utilization"),
    ]
    assert titles["models"] == [
        *("Reward trends over time", "A/B test results", "Error rates by model version", "User feedback metrics"),
    ]
    assert titles["releases"][:4] == [
        *("Canary rollout progress", "Traffic distribution", "Rollback history", "Validation pass rates"),
    ]
    sources = read("grafana/provisioning/datasources/etude.yml")["datasources"]
    (source,) = (one for one in sources if one.get("isDefault"))
    for board in boards.values():
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        places = [panel["gridPos"] for panel in board["panels"]]
        assert len({(place["x"], place["y"]) for place in places}) == len(places)
        for panel in board["panels"]:
            assert panel["description"]
            assert {target["datasource"]["uid"] for target in panel["targets"]} == {source["uid"]}
    (provider,) = read("grafana/provisioning/dashboards/etude.yml")["providers"]
    mounts = compose()["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in mounts


def test_logs_are_kept_for_30_days() -> None:
    loki = read("loki/loki.yml")
    assert loki["limits_config"]["retention_period"] == f"{30 * 24}h"
    assert loki["compactor"]["retention_enabled"] is True
    assert loki["compactor"]["delete_request_store"] == loki["schema_config"]["configs"][0]["object_store"]
    assert loki["schema_config"]["configs"][0]["index"]["period"] == "24h"  # what retention needs
    alloy = (DEPLOY / "alloy/config.alloy").read_text()
    assert alloy.count("{") == alloy.count("}")
    assert 'url = "http://loki:3100/loki/api/v1/push"' in alloy
    labels = re.search(r"stage\.labels \{\s*values = \{([^}]*)\}", alloy)
    assert labels is not None
    assert re.findall(r"(\w+) =", labels[1]) == ["level", "route"]  # request ids would make a stream of each line


def compose() -> Any:
    return read("compose.yaml")


def test_compose_holds_no_secret_and_pins_what_it_runs() -> None:
    text, found = (DEPLOY / "compose.yaml").read_text(), compose()
    assert set(found) - {"x-defaults"} == {"name", "services", "secrets", "volumes"}
    assert {"etude", "nats", "clickhouse", "s3", "prometheus", "grafana", "loki", "alloy"} <= set(found["services"])
    known = {
        *("image", "build", "command", "entrypoint", "environment", "ports", "volumes", "depends_on", "healthcheck"),
        *("restart", "logging", "secrets", "stop_grace_period", "ulimits"),
    }
    for name, service in found["services"].items():
        assert set(service) <= known, name
        assert re.fullmatch(r"[a-z0-9/-]+:v?[0-9]+\.[0-9]+[0-9a-z.-]*", service["image"]), name
        assert set(service.get("secrets", ())) <= set(found["secrets"])
        for volume in service.get("volumes", ()):
            source, target, *mode = volume.split(":")
            assert target.startswith("/")
            if source.startswith("./"):
                assert (DEPLOY / source).exists(), volume
                assert mode == ["ro"], volume
            else:
                assert source in found["volumes"] or source == "/var/run/docker.sock", volume
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} is published to other machines"
        for other, how in _depends(service).items():
            needed = found["services"][other]
            assert how != "service_healthy" or "healthcheck" in needed, f"{name} waits for {other} for ever"
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|KEY|BUS|STORE", key) and not key.endswith("__FILE"):
                assert re.search(r"\$\{[A-Z0-9_]+:\?", str(value)), f"{name}: {key}"
    assert not re.search(r"password: +[^$\s{]", text, re.I)
    for secret in found["secrets"].values():
        assert secret["file"].startswith("secrets/")
    assert (DEPLOY / ".gitignore").read_text().split() == [".env", "secrets/"]
    serves = {name for name, service in found["services"].items() if "healthcheck" not in service}
    assert serves == {"s3-bucket", "loki", "alloy"}  # images without a shell, and what ends by itself


def _depends(service: Any) -> dict[str, str]:
    given = service.get("depends_on", {})
    return (
        dict.fromkeys(given, "service_started")
        if isinstance(given, list)
        else {n: d["condition"] for n, d in given.items()}
    )


def test_its_settings_are_settings_of_etude(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in compose()["services"]["etude"]["environment"].items():
        monkeypatch.setenv(name, re.sub(r"\$\{([A-Z0-9_]+):\?[^}]*\}", "px", value))
    settings = settings_here()
    assert settings.experience.bus == "nats://etude:px@nats:4222"
    assert settings.experience.blobs.startswith("s3://etude/")
    assert (settings.serving.log_format, settings.serving.drain_s) == ("json", 5.0)
    scrape = read("prometheus/prometheus.yml")["scrape_configs"][0]
    assert scrape["static_configs"] == [{"targets": [f"etude:{settings.serving.port}"]}]
    assert scrape["authorization"]["credentials_file"] == "/run/secrets/metrics_key"


def test_secrets_are_made_once_and_for_their_owner(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "make-secrets.sh", tmp_path)
    subprocess.run([tmp_path / "make-secrets.sh"], check=True, capture_output=True)
    made = (tmp_path / ".env").read_text()
    lines = dict(line.split("=") for line in made.splitlines())
    needed = set(re.findall(r"\$\{([A-Z0-9_]+):\?", (DEPLOY / "compose.yaml").read_text()))
    assert set(lines) == needed
    assert all(re.fullmatch(r"p[0-9a-f]{48}", value) for value in lines.values())
    assert len(set(lines.values())) == len(lines)
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert {path.name for path in (tmp_path / "secrets").iterdir()} == set(compose()["secrets"])
    config = json.loads((tmp_path / "secrets/s3_config").read_text())
    assert config["identities"][0]["credentials"][0]["secretKey"] == lines["S3_SECRET_KEY"]
    before = (tmp_path / "secrets/grafana_password").read_text()
    subprocess.run([tmp_path / "make-secrets.sh"], check=True, capture_output=True)
    assert (tmp_path / ".env").read_text() == made
    assert (tmp_path / "secrets/grafana_password").read_text() == before


def test_the_image_has_no_latest_tag_and_no_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-slim-\w+$", text, re.M)
    assert text.index("USER etude") < text.index('CMD ["etude"')
    assert "HEALTHCHECK" in text
    extras = re.search(r"'\.\[([a-z,]+)\]'", text)
    assert extras is not None
    declared = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", declared, re.M) for extra in extras[1].split(","))


def certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "etude.example.org")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(1))
    folder.mkdir()
    pem = serialization.Encoding.PEM
    (folder / "tls.crt").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem))
    traditional = serialization.PrivateFormat.TraditionalOpenSSL
    (folder / "tls.key").write_bytes(key.private_bytes(pem, traditional, serialization.NoEncryption()))


def test_nginx_reads_its_file(tmp_path: Path) -> None:
    certificate(tmp_path / "etude")
    (tmp_path / "etude/key.conf").write_text('proxy_set_header Authorization "Bearer x";')
    config = tmp_path / "nginx.conf"
    text = (DEPLOY / "proxy/nginx.conf").read_text()
    assert text.count("/etc/nginx/etude/") == 3
    config.write_text(text.replace("/etc/nginx/etude/", f"{tmp_path}/etude/"))
    own = f"pid {tmp_path}/pid; error_log {tmp_path}/log;"
    os.environ["PATH"] += ":/usr/sbin"
    assert "test is successful" in run("nginx", "-t", "-p", tmp_path, "-c", config, "-g", own, package="nginx-light")
    assert re.search(r"location / \{ return 404; \}", text)  # /metrics and /stats are not for the outside


def test_caddy_reads_its_file(tmp_path: Path) -> None:
    file = DEPLOY / "proxy/Caddyfile"
    said = run("caddy", "adapt", "--config", file, "--adapter", "caddyfile", cwd=tmp_path, package="caddy")
    routed = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert "/metrics" not in json.dumps(routed)
