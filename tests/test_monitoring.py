"""Files for Grafana and Prometheus name what the gateway counts, and all of it."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from gateway.metrics import PREFIX, REGISTRY
from gateway.session import EndReason
from tests.servers import installed

ROOT = Path(__file__).parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
METRICS_PAGE = (ROOT / "docs" / "metrics-and-logs.md").read_text(encoding="utf-8")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
KINDS = {
    (family.name + "_total" if family.type == "counter" else family.name): family.type for family in REGISTRY.collect()
}
COLLECTORS = REGISTRY._names_to_collectors
LABELS = {label for name in KINDS for label in COLLECTORS[name]._labelnames}


def names_in(text: str) -> set[str]:
    return set(re.findall(rf"{PREFIX}\w+", text))


def known() -> set[str]:
    return {name + suffix for name, kind in KINDS.items() for suffix in SUFFIXES[kind]}


@pytest.mark.parametrize("path", [DASHBOARD, ALERTS], ids=["dashboard", "alerts"])
def test_only_what_is_counted_is_asked_for(path: Path) -> None:
    assert names_in(path.read_text(encoding="utf-8")) - known() == set()


def test_labels_are_those_that_exist() -> None:
    text = DASHBOARD.read_text(encoding="utf-8") + ALERTS.read_text(encoding="utf-8")
    labels = LABELS | {"le", "instance"}
    asked = [label for found in re.findall(r"by \(([^)]*)\)", text) for label in re.split(r",\s*", found)]
    assert set(asked) - labels == set()
    reasons = {reason for found in re.findall(r'reason=~\\?"([^"\\]*)', text) for reason in found.split("|")}
    assert reasons - set(map(str, EndReason)) == set()


def test_dashboard_shows_everything() -> None:
    shown = names_in(DASHBOARD.read_text(encoding="utf-8"))
    assert [name for name in KINDS if not any(one.startswith(name) for one in shown)] == []


def test_dashboard_shows_every_label() -> None:
    """A panel that adds up what a label keeps apart says less than the metric."""
    text = DASHBOARD.read_text(encoding="utf-8")
    asked = [label for found in re.findall(r"by \(([^)]*)\)", text) for label in re.split(r",\s*", found)]
    assert LABELS - set(asked) == set()


def test_panels_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_alert_says_what_to_do() -> None:
    text = ALERTS.read_text(encoding="utf-8")
    assert len(re.findall("- alert: ", text)) == len(re.findall("description: ", text)) > 0


@pytest.mark.skipif(not installed("promtool"), reason="promtool is not installed")
@pytest.mark.parametrize(
    ("alert", "series", "severity"),
    [
        ("RedisIsAway", "redis_away", "critical"),
        ("DatabaseIsAway", "database_away", "critical"),
        ("PinGuessing", 'pin_tries_total{result="locked"}', "warning"),
    ],
)
def test_alert_is_raised(alert: str, series: str, severity: str, tmp_path: Path) -> None:
    """Prometheus itself evaluates the rules: soon after the value has risen, for the node whose value it is."""
    name, _, label = series.rstrip("}").partition("{")
    nodes = [f'{PREFIX}{name}{{instance="{node}",{label}}}'.replace(",}", "}") for node in "ab"]
    values = [{"series": nodes[0], "values": "0 1x9"}, {"series": nodes[1], "values": "0 0x9"}]
    raised = [{"exp_labels": {"severity": severity, "instance": "a"}}]
    cases = [
        {"eval_time": time, "alertname": alert, "exp_alerts": alerts} for time, alerts in (("0m", []), ("3m", raised))
    ]
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    for rule in rules["groups"][0]["rules"]:
        rule.pop("annotations")
    (tmp_path / "rules.yml").write_text(json.dumps(rules))
    tests = [{"interval": "1m", "input_series": values, "alert_rule_test": cases}]
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": tests}))
    command = [installed("promtool"), "test", "rules", "test.yml"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.skipif(not installed("promtool"), reason="promtool is not installed")
def test_prometheus_accepts_the_rules() -> None:
    ran = subprocess.run([installed("promtool"), "check", "rules", str(ALERTS)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_rule_is_complete() -> None:
    for rule in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]:
        assert {"alert", "expr", "for", "labels", "annotations"} == set(rule)
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_docs_list_every_metric() -> None:
    section = METRICS_PAGE.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    assert re.findall(rf"^\| `{PREFIX}(\w+)` \|", section, re.MULTILINE) == [
        name.removeprefix(PREFIX) for name in sorted(KINDS)
    ]
