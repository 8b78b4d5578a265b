"""Environments, rollouts and vLLM servers on many machines; start reading at `hosting/link.py`.

On Ray (extra `ray`):

- `RayEnvironments`: environments on the nodes of a cluster.
- `RayRolloutWorkers`: whole episodes, played there.
- `RayVLLMServers`: vLLM servers on the cluster's GPUs.

Without Ray:

- `WebSocketEnvironments`: environments on machines that run `python -m gymnast.cluster.serve`.
"""

from .on_ray.environments import RayEnvironments
from .on_ray.rollout_workers import RayRolloutWorkers
from .on_ray.vllm_servers import RayVLLMServers
from .websocket.environments import WebSocketEnvironments

__all__ = ["RayEnvironments", "RayRolloutWorkers", "RayVLLMServers", "WebSocketEnvironments"]
