"""gymnast trains language-model agents with reinforcement learning.

- `gymnast.envs`: environments with tools, and the engine that plays them.
- `gymnast.records`: what a run leaves, and what is wrong with it.
- `gymnast.trainer`: `GRPOTrainer` and `RLOOTrainer`, which learn from the episodes.
- `gymnast.sandbox`: executors that run untrusted code.
- `gymnast.cluster`: environments on other machines.

This file holds the version only, so `import gymnast` loads none of the five.
"""

__version__ = "0.1.0"
