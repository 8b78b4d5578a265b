"""A Ray cluster of three nodes, all on this machine. In one file, so that one cluster serves all tests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from gymnast.cluster import RayEnvironments, RayRolloutWorkers, RayVLLMServers
from gymnast.envs import Calculator, CodeEnv, ConfigurationError, tool_call
from gymnast.envs.runtime.threads import run_in_thread
from gymnast.sandbox import DockerExecutor, LocalExecutor
from gymnast.sandbox.docker.labels import LABEL

from ..training import buttons
from . import hosted
from .fake_vllm import fake_server
from .hosted import ADD, ANSWER, ERRORS, ROW, STAGES, is_running, parent, play, told, without_times

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray: Any = pytest.importorskip("ray")
for module in (buttons, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)  # the nodes cannot import the tests

SCRIPT = [ADD, ANSWER]
SERVER = """
import http.server, os, sys
print("about to serve", sys.argv[1:], flush=True)
if "broken" in sys.argv[1]:
    raise SystemExit("no such model")
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}".encode())
    def log_message(self, *arguments): ...
port = int(sys.argv[-1].removeprefix("--port="))
http.server.HTTPServer(("", port), Health).serve_forever()
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Any]]:
    """The cluster and its three nodes, which claim two processors each; the last one also claims two GPUs."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    others = [cluster.add_node(num_cpus=2), cluster.add_node(num_cpus=2, num_gpus=2)]
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    try:
        yield [cluster, *others]
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def hosts(nodes: list[Any]) -> Iterator[RayEnvironments]:
    """One host on each node, with several environments. The last test closes them."""
    environments = {
        "calculator": Calculator(),
        "drawn": hosted.Drawn,
        "process": hosted.Process,
        "breaking": hosted.Breaking,
        "meets": hosted.Meets(hosted.Meeting(170)),
        "code": CodeEnv(LocalExecutor()),
        "buttons": buttons.Buttons(),
    }
    with RayEnvironments(environments) as hosts:
        yield hosts


pytestmark = pytest.mark.usefixtures("nodes")


def rows_of(environment: str, count: int = 1, **columns: Any) -> list[dict[str, Any]]:
    return [ROW | {"environment": environment, "index": index} | columns for index in range(count)]


def host_processes(hosts: RayEnvironments) -> set[int]:
    return {told(host)["pid"] for host in play(hosts, ["go"], rows=rows_of("process", len(hosts.hosts_present)))}


def wait_until_gone(pids: set[int], *, at_least: int | None = None) -> None:
    end = time.monotonic() + 30
    while sum(map(is_running, pids)) > len(pids) - (at_least or len(pids)):
        assert time.monotonic() < end, "processes are left"
        time.sleep(0.01)


def test_episodes_on_hosts_equal_local_ones(hosts: RayEnvironments) -> None:
    assert len(set(hosts.hosts_present)) == 3
    assert len(host_processes(hosts)) == 3
    rows = rows_of("drawn", 16)
    remote = play(hosts, SCRIPT, rows=rows)
    assert without_times(remote) == without_times(play({"drawn": hosted.Drawn}, SCRIPT, rows=rows))
    assert remote[0].turns[0].html == "<b>3</b>"
    assert {episode.reward for episode in remote} == {1.0}


def test_exceptions_keep_their_type_their_message_and_their_stage(hosts: RayEnvironments) -> None:
    columns = [{"stage": stage, "error": error} for stage in STAGES for error in range(len(ERRORS))]
    rows = [{"environment": "breaking"} | column for column in columns]
    remote = play(hosts, ["go"], rows=rows)
    for here, there in zip(play({"breaking": hosted.Breaking}, ["go"], rows=rows), remote, strict=True):
        for mine, other in ((here.failure, there.failure), (here.close_failure, there.close_failure)):
            assert str(mine) == str(other)
        assert (here.reward, here.metrics, here.stop) == (there.reward, there.metrics, there.stop)
    assert "in _at\n" in str(remote[0].failure and remote[0].failure.traceback)  # the function that raised, on the host


def test_512_blocking_steps_run_at_the_same_time(hosts: RayEnvironments) -> None:
    """No call waits behind another one, in no host: each step ends only when all steps of its host have begun."""
    episodes = play(hosts, ["go"], rows=rows_of("meets", 512))
    assert {episode.reward for episode in episodes} == {1.0}


def test_hosts_see_no_gpu_unless_they_ask_for_it(hosts: RayEnvironments) -> None:
    assert told(play(hosts, ["go"], rows=rows_of("process"))[0])["gpus"] == ""
    with RayEnvironments(hosted.Process, resources={"GPU": 1}) as with_gpu:
        assert len(with_gpu.hosts_present) == 1
        assert told(play(with_gpu, ["go"])[0])["gpus"] in ("0", "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"resources": {"GPU": 4}},
            r"no node of the Ray cluster has 4 GPU; its 3 nodes have 2 GPU \(\d free, at most 2",
        ),
        (
            {"resources": {"CPU": 2}, "hosts": 4},
            "within 0.5 s: asked for 4 x 2 CPU, in all 8 CPU; its 3 nodes have 6 CPU",
        ),
    ],
)
def test_impossible_places_are_an_error_that_says_what_is_missing(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RayEnvironments(Calculator, placement_timeout=0.5, **options)


class Unreadable:
    def __reduce__(self) -> Any:
        return __import__, ("no_such_module",)


def test_an_environment_that_cannot_be_made_on_the_nodes_is_an_error_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match=r"a host .* did not start: .*no_such_module.*working_dir"):
        RayEnvironments(hosted.Meets(Unreadable()), hosts=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="the environment cannot be sent to another machine"):
        RayEnvironments(hosted.Meets(threading.Lock()), hosts=1)  # type: ignore[arg-type]


def test_docker_boxes_belong_to_the_nodes_and_are_gone_after_close(image: str) -> None:
    def containers() -> list[str]:
        command = ["docker", "ps", "-aq", "--filter", f"label={LABEL}.pid={process}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    environments = {"code": CodeEnv(DockerExecutor(image=image)), "process": hosted.Process}
    with RayEnvironments(environments, hosts=1) as hosts:
        [process] = host_processes(hosts)
        script = [tool_call("python", code="open('mine', 'w').write('6 * 7')"), ANSWER]
        assert [episode.reward for episode in play(hosts, script, rows=rows_of("code", 4))] == [1.0] * 4
        assert containers(), "the pool of the host keeps boxes"
    end = time.monotonic() + 30
    while containers():  # they end when they notice the end of their owner
        assert time.monotonic() < end, "containers are left"
        time.sleep(0.1)


def losses(environment: Any, folder: Path, **options: Any) -> list[list[float]]:
    """Logged figures of a training of three steps."""
    trainer = buttons.make_trainer(folder, environment=environment, max_steps=3, **options)
    trainer.train()
    trainer.player.generator.close()
    wanted = ("loss", "reward", "grad_norm", "tokens/drift", "episodes/failed")
    return [[logs[name] for name in wanted] for logs in trainer.state.log_history if "loss" in logs]


def test_a_training_with_remote_environments_equals_a_local_one(hosts: RayEnvironments, tmp_path: Path) -> None:
    rows = [row | {"environment": "buttons"} for row in buttons.ROWS]
    local = losses({"buttons": buttons.Buttons()}, tmp_path / "local", rows=rows)
    assert losses(hosts, tmp_path / "remote", rows=rows) == local
    assert len(local) == 3


def test_a_training_with_remote_workers_equals_a_local_one(tmp_path: Path) -> None:
    calls = [buttons.call_ids(name) for name in ("look", "left", "right")]
    with fake_server(lambda seed: calls[seed % 3]) as (url, server), RayRolloutWorkers(buttons.Buttons(), 1) as workers:
        options = {"generator": "vllm-server", "vllm_server_urls": [url], "max_model_len": 1024}
        remote = losses(workers, tmp_path / "remote", **options)
        weights = len(server.requests)
        assert remote == losses(None, tmp_path / "local", **options)
        with pytest.raises(ConfigurationError, match=r"cannot use TransformersGenerator, .* generator='vllm-server'"):
            losses(workers, tmp_path / "refused")
    assert weights == 1 + 3  # those of the first checks, and those of each step


def test_a_lost_worker_fails_its_episodes_and_the_next_round_is_complete(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"then": ("die" if index == 0 else "hang") if index % 2 == 0 else None} for index in range(8)]
    with RayRolloutWorkers(hosted.Meets(hosted.Meeting(4)), 2) as workers:
        episodes = play(workers, ["go"], rows=rows)
        failures = [episode.failure and episode.failure.type for episode in episodes]
        assert failures == ["BrokenEnvironmentError", None] * 4
        assert "the worker of this episode was lost" in str(episodes[2].failure)
        assert [worker.reward for worker in play(workers, ["go"], count=4)] == [1.0] * 4
        assert len(workers.hosts_present) == 1  # the lost one is not started again
    assert "1 of 2 are left" in caplog.text


def test_servers_have_their_own_gpus_and_end_with_their_actors() -> None:
    import urllib.request

    command = [sys.executable, "-c", SERVER]
    with RayVLLMServers("model", 2, command=command) as servers:
        answers = [urllib.request.urlopen(url).read().decode().split() for url in servers.urls]
        assert sorted(gpu for _, gpu in answers) == ["0", "1"]
        with pytest.raises(
            ConfigurationError, match=r"no place for vLLM servers within 0.5 s: asked for 1 x 1 CPU \+ 2"
        ):
            RayVLLMServers("model", gpus=2, command=command, placement_timeout=0.5)
        processes = {int(pid) for pid, _ in answers}
        actors = {parent(parent(pid)) for pid in processes}  # parents of the tethers, which are parents of the servers
        for actor in actors:
            assert os.getpgid(actor) == actor
            os.killpg(actor, signal.SIGKILL)  # so does Ray after an actor's end, and no child is faster for certain
        wait_until_gone(processes)
    with pytest.raises(ConfigurationError, match=r"did not start: the server ended with 1:\nabout[\s\S]*no such model"):
        RayVLLMServers("broken", gpus=0, command=command)


def test_a_killed_node_fails_exactly_its_episodes_and_the_next_round_is_complete(
    nodes: list[Any], hosts: RayEnvironments
) -> None:
    cluster, doomed, _ = nodes
    count, acting, dead = 24, 0, asyncio.Event()
    processes, names = host_processes(hosts), set(hosts.hosts_present)

    def kill() -> None:
        cluster.remove_node(doomed, allow_graceful=False)
        wait_until_gone(processes, at_least=1)  # they notice the end of their node a moment later

    async def answer(messages: Any) -> Any:
        """The second answers come after the death of the node, when all episodes are in play."""
        nonlocal acting
        if len(messages) == 1:
            return ADD
        acting += 1
        if acting == count:
            await run_in_thread(kill)
            dead.set()
        await dead.wait()
        return ANSWER

    rows = rows_of("calculator", count)
    episodes = play(hosts, answer, rows=rows)
    [lost] = names - set(hosts.hosts_present)
    failed = [episode.failure for episode in episodes if episode.failure is not None]
    assert len(failed) == count // 3
    assert {(item.stage, item.type) for item in failed} == {("step", "BrokenEnvironmentError")}
    assert all(f"the host of this Calculator was lost: {lost}" in failure.message for failure in failed)
    assert [host.reward for host in play(hosts, SCRIPT, rows=rows)] == [1.0] * count


ANCESTORS = """
import os
supervisor = os.getppid()
host = open(f"/proc/{supervisor}/stat").read().rpartition(")")[2].split()[1]
print(host, supervisor, os.getpid())
"""


def test_boxes_live_on_the_nodes_and_nothing_is_left_after_close(hosts: RayEnvironments) -> None:
    processes = host_processes(hosts)
    script = [tool_call("python", code=ANCESTORS), ANSWER]
    episodes = play(hosts, script, rows=rows_of("code", len(processes)))
    assert {episode.reward for episode in episodes} == {1.0}
    texts = [str(episode.turns[0].observation[0].get("content")) for episode in episodes]
    ancestors = [[int(pid) for pid in text.split()] for text in texts]
    assert {host for host, _, _ in ancestors} == processes
    hosts.close()
    wait_until_gone({pid for pids in ancestors for pid in pids})
