"""Environments, rollouts and vLLM servers on many machines; start reading at `hosting/link.py`."""

from .on_ray.environments import RayEnvironments
from .on_ray.rollout_workers import RayRolloutWorkers
from .on_ray.vllm_servers import RayVLLMServers
from .websocket.environments import WebSocketEnvironments

__all__ = ["RayEnvironments", "RayRolloutWorkers", "RayVLLMServers", "WebSocketEnvironments"]
