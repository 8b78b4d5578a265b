"""Pools of warm, bounded, health-checked boxes; start reading at `pool.py`."""

from .pool import ExecutorPool, pool_of
from .statistics import PoolStatistics

__all__ = ["ExecutorPool", "PoolStatistics", "pool_of"]
