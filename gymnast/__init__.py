"""gymnast trains language-model agents with reinforcement learning.

- `gymnast.envs`: environments with tools, and the engine that plays them.
- `gymnast.records`: what a run leaves, and what is wrong with it.
- `gymnast.trainer`: `GRPOTrainer` and `RLOOTrainer`, which learn from the episodes.
- `gymnast.sandbox`: executors that run untrusted code.
- `gymnast.cluster`: environments on other machines.

The main names are here, too. Each is imported when it is first used, so `import gymnast` loads none of the five.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gymnast.envs import CodeEnv, Environment, ToolEnv, tool
    from gymnast.trainer import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

__version__ = "0.1.0"
REPOSITORY = ""
"""Its address, once it has one: links lead there."""
__all__ = ["CodeEnv", "Environment", "GRPOConfig", "GRPOTrainer", "RLOOConfig", "RLOOTrainer", "ToolEnv", "tool"]
_OF_TRAINER = ("GRPO", "RLOO")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    package = "trainer" if name.startswith(_OF_TRAINER) else "envs"
    return getattr(import_module(f"{__name__}.{package}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
