"""Pools of boxes that are made in advance and reused; start reading at `pool.py`."""

from .pool import ExecutorPool, pool_of
from .states import PoolStatistics

__all__ = ["ExecutorPool", "PoolStatistics", "pool_of"]
