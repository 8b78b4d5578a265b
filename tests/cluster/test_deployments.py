"""The examples for Slurm and Kubernetes are well formed. They have not been run: that needs such clusters."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "cluster"


def test_the_slurm_script_is_bash_and_asks_for_machines() -> None:
    script = EXAMPLES / "slurm.sh"
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""
    assert re.findall(r"^#SBATCH --nodes=(\d+)$", script.read_text(), re.MULTILINE) == ["3"]


def test_the_job_for_kuberay_has_the_tested_version_of_ray_and_one_image() -> None:
    text = (EXAMPLES / "kuberay.yaml").read_text()
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert f"ray=={cluster['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()
    assert cluster["authOptions"] == {"mode": "token"}
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    images = [container["image"] for group in groups for container in group["template"]["spec"]["containers"]]
    assert len(images) == 2
    assert len(set(images)) == 1
