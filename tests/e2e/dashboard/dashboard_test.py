"""Every query of the Grafana dashboard, on a real Prometheus that scrapes a real worker and router.

Boots both processes on free ports (the tiny checkpoint of tests/golden), Prometheus with deploy/prometheus/prometheus.yml
pointed at them, sends requests, and asserts that each panel gets finite numbers. Nothing outlives the test.

Environment: RIDGE_TEST_PROMETHEUS, RIDGE_TEST_PROMTOOL (paths; default: from PATH). Where a program is missing the test is
skipped (exit code 77), or fails if RIDGE_REQUIRE_TOOLS=1.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

SKIPPED = 77
START_TIMEOUT_S = 60
# From the first request to the last panel's first finite answer: scrapes come once a second, and rates need two of them.
PANELS_TIMEOUT_S = 90
# Short enough to hold only scrapes that saw traffic, long enough for several of them.
RATE_INTERVAL = "20s"

arguments = None  # set by main
tools = {}  # name -> path


def http_get(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read().decode()


class Process:
    """A child with its output in a log file; ended by SIGTERM when its `with` block is left."""

    def __init__(self, directory, name, command):
        self.name = name
        self.log_path = directory / f"{name}.log"
        with open(self.log_path, "wb") as log:
            self._child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def wait_for_log(self, pattern):
        """Returns the groups of the first match in the log."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            text = self.log_path.read_text(errors="replace")
            if match := re.search(pattern, text):
                return match.groups()
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.name} did not start; its log:\n{text[-4000:]}")
            time.sleep(0.05)


class Ridge:
    """A worker and a router before it, both ready."""

    READY = r"ready: gRPC on (\S+:\d+), metrics on (\S+:\d+)"

    def __init__(self, stack, directory):
        model = arguments.source_dir / "tests/golden/tiny-llama"
        any_port = ["--listen=127.0.0.1:0", "--metrics_port=0"]
        worker = stack.enter_context(
            Process(
                directory,
                "ridge-worker",
                # A small pool and batch, so that usage and queue are visible.
                [arguments.bin_dir / "ridge-worker", f"--model={model}", "--device=cpu", "--threads=1"]
                + ["--kv_cache_bytes=2MiB", "--max_batch=4", "--chunk_tokens=64"]
                + any_port,
            )
        )
        worker_address, self.worker_metrics = worker.wait_for_log(self.READY)
        router = stack.enter_context(
            Process(
                directory, "ridge-router", [arguments.bin_dir / "ridge-router", f"--workers={worker_address}"] + any_port
            )
        )
        self.address, self.router_metrics = router.wait_for_log(self.READY)
        for metrics in (self.worker_metrics, self.router_metrics):
            wait_until(lambda m=metrics: http_get(f"http://{m}/readyz") is not None, f"{metrics} to be ready")

    def ask(self, prompt_ids, max_tokens):
        ids = ",".join(map(str, prompt_ids))
        command = [arguments.bin_dir / "ridge-bench", "ask", f"--target={self.address}", f"--prompt_ids={ids}"]
        command += [f"--max_tokens={max_tokens}", "--seed=1", "--ignore_eos"]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)


def wait_until(condition, what, timeout_s=START_TIMEOUT_S):
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s for {what}")
        time.sleep(0.1)


class Traffic:
    """Clients that ask again and again, several at once, so that steps of every kind happen."""

    # Prompts of several chunks beside long and short generations: prefill, decode and mixed steps, and a queue.
    SHAPES = [(200, 64), (3, 300), (17, 100), (120, 16), (1, 200), (64, 32)]

    def __init__(self, ridge):
        self._ridge = ridge
        self._stop = threading.Event()
        self.failures = []
        self._threads = [threading.Thread(target=self._run, args=shape) for shape in self.SHAPES]

    def _run(self, prompt_tokens, max_tokens):
        prompt = [3 + i % 500 for i in range(prompt_tokens)]
        while not self._stop.is_set():
            result = self._ridge.ask(prompt, max_tokens)
            if result.returncode != 0:
                self.failures.append(result.stdout.decode(errors="replace"))
                return

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Prometheus:
    """A real Prometheus with the repository's configuration, its targets replaced."""

    def __init__(self, stack, directory, ridge):
        config = (arguments.source_dir / "deploy/prometheus/prometheus.yml").read_text()
        for target, address in (("router:9100", ridge.router_metrics), ("worker:9101", ridge.worker_metrics)):
            if config.count(f'"{target}"') != 1:
                raise AssertionError(f"prometheus.yml does not scrape {target}")
            config = config.replace(target, address)
        config = re.sub(r"(scrape_interval|scrape_timeout|evaluation_interval): \ds", r"\1: 1s", config)
        config_path = directory / "prometheus.yml"
        config_path.write_text(config)
        process = stack.enter_context(
            Process(
                directory,
                "prometheus",
                [tools["prometheus"], f"--config.file={config_path}", f"--storage.tsdb.path={directory}/tsdb"]
                + ["--web.listen-address=127.0.0.1:0"],
            )
        )
        # Port 0: the address is in the log.
        (address,) = process.wait_for_log(r'msg="Listening on" address=(\S+:\d+)')
        self._url = f"http://{address}"
        wait_until(lambda: http_get(f"{self._url}/-/ready") is not None, "Prometheus")

    def api(self, path, **parameters):
        try:
            text = http_get(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        except urllib.error.HTTPError as error:  # a query that does not parse
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        answer = json.loads(text)
        if answer["status"] != "success":
            raise AssertionError(f"{parameters}: {answer}")
        return answer["data"]

    def query(self, expression):
        """Returns [(labels, value)] of an instant query."""
        return [(r["metric"], float(r["value"][1])) for r in self.api("query", query=expression)["result"]]


def load_dashboard():
    return json.loads((arguments.source_dir / "deploy/grafana/dashboards/ridge.json").read_text())


def panel_queries(dashboard):
    """Returns [(panel title, PromQL)], variables replaced as Grafana would."""
    queries = []
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", RATE_INTERVAL).replace("$instance", ".*")
            queries.append((panel["title"], expression))
    return queries


def fault(series, expression):
    """Says what is wrong with a query's answer, or returns None."""
    if not series:
        return "no data"
    for labels, value in series:
        if not math.isfinite(value):
            return f"{value} for {labels}"
    # Under traffic every rate moves; a gauge may rest at 0.
    if "rate(" in expression and not any(value > 0 for _, value in series):
        return "all zero"
    return None


class DashboardFileTest(unittest.TestCase):
    def test_has_a_panel_for_each_thing_to_watch(self):
        titles = {title.lower() for title, _ in panel_queries(load_dashboard())}
        for wanted in ("time to first token", "inter-token latency", "step time by kind", "batch size", "queue"):
            self.assertIn(wanted, titles)
        self.assertIn("kv cache usage", titles)

    def test_leaves_no_variable_unknown(self):
        dashboard = load_dashboard()
        names = {variable["name"] for variable in dashboard["templating"]["list"]}
        self.assertEqual(names, {"datasource", "instance"})
        for title, expression in panel_queries(dashboard):
            self.assertNotIn("$", expression, title)

    def test_asks_only_for_metrics_that_the_page_documents(self):
        page = (arguments.source_dir / "docs/metrics.md").read_text()
        documented = set(re.findall(r"^\| `(ridge_\w+)` \|", page, re.MULTILINE))
        self.assertGreater(len(documented), 15)
        for title, expression in panel_queries(load_dashboard()):
            for name in re.findall(r"ridge_\w+", expression):
                self.assertIn(re.sub(r"_(bucket|sum|count)$", "", name), documented, title)


class PrometheusConfigTest(unittest.TestCase):
    def test_passes_promtool(self):
        path = arguments.source_dir / "deploy/prometheus/prometheus.yml"
        result = subprocess.run([tools["promtool"], "check", "config", path], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class PanelsTest(unittest.TestCase):
    def test_every_panel_gets_finite_numbers_from_a_real_prometheus(self):
        dashboard = load_dashboard()
        with contextlib.ExitStack() as stack:
            directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ridge-dashboard-")))
            ridge = Ridge(stack, directory)
            prometheus = Prometheus(stack, directory, ridge)
            with Traffic(ridge) as traffic:
                self._wait_for_panels(prometheus, traffic, panel_queries(dashboard))
            self.assertEqual(traffic.failures, [])
            self._check_instance_variable(prometheus, dashboard, ridge)

    def _wait_for_panels(self, prometheus, traffic, open_queries):
        """Asks until each query has answered well once: an early rate is rightly empty."""
        deadline = time.monotonic() + PANELS_TIMEOUT_S
        while True:
            faults = []
            for title, expression in open_queries:
                if problem := fault(prometheus.query(expression), expression):
                    faults.append((title, expression, problem))
            if not faults:
                return
            self.assertEqual(traffic.failures, [])
            self.assertLess(time.monotonic(), deadline, "\n".join(" | ".join(f) for f in faults))
            open_queries = [(title, expression) for title, expression, _ in faults]
            time.sleep(1)

    def _check_instance_variable(self, prometheus, dashboard, ridge):
        (variable,) = [v for v in dashboard["templating"]["list"] if v["name"] == "instance"]
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
        values = prometheus.api(f"label/{label}/values", **{"match[]": metric})
        self.assertEqual(values, [ridge.worker_metrics])


def find_tools():
    """Fills `tools`; returns the names of those that are missing."""
    for name in ("prometheus", "promtool"):
        path = os.environ.get(f"RIDGE_TEST_{name.upper()}") or shutil.which(name)
        if path and os.access(path, os.X_OK):
            tools[name] = path
    return {"prometheus", "promtool"} - tools.keys()


def main():
    global arguments
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source_dir", type=pathlib.Path, required=True, help="the repository")
    parser.add_argument("--bin_dir", type=pathlib.Path, required=True, help="where ridge-worker and the others are")
    arguments, rest = parser.parse_known_args()
    if missing := find_tools():
        print(f"not found: {', '.join(sorted(missing))}", file=sys.stderr)
        sys.exit(1 if os.environ.get("RIDGE_REQUIRE_TOOLS") == "1" else SKIPPED)
    unittest.main(argv=[sys.argv[0]] + rest, verbosity=2)


if __name__ == "__main__":
    main()
