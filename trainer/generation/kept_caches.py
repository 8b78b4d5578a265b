"""KeptCaches: the keys and values of conversations between their turns. A turn then computes its new tokens only."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

SHARE = 0.25  # of a GPU's free memory
CPU_BYTES = 2**31


@dataclass(slots=True, eq=False)
class KeptCache:
    """The keys and values of the first tokens of a conversation."""

    ids: list[int]  # (T,)
    layers: list[tuple[Tensor, Tensor]]  # keys and values of each layer, (H, T, D)
    weight_version: int

    @property
    def nbytes(self) -> int:
        """The bytes of the keys and values."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)


class KeptCaches:
    """One `KeptCache` for each session, up to a budget of bytes: the least recently used go first.

    A session that is garbage takes its cache with it. All methods may be called from any thread. The default budget is
    a quarter of the GPU's memory that is free when the first cache comes; without a GPU 2 GiB.
    """

    def __init__(self, budget: int | None = None) -> None:
        self._given = self._budget = budget
        self._caches: WeakKeyDictionary[object, KeptCache] = WeakKeyDictionary()  # the least recently used first
        self._lock = threading.Lock()

    def put(self, session: object, cache: KeptCache) -> None:
        """Keep a session's cache for its next turn, in place of an earlier one."""
        with self._lock:
            if self._given is None and not self._caches:
                self._budget = _budget(cache.layers[0][0].device)
            assert self._budget is not None
            self._caches.pop(session, None)
            room = self._budget - cache.nbytes - sum(kept.nbytes for kept in self._caches.values())
            for oldest in list(self._caches):
                if room >= 0:
                    break
                room += self._caches.pop(oldest).nbytes
            if room >= 0:
                self._caches[session] = cache

    def take(self, session: object | None, ids: list[int], weight_version: int) -> KeptCache | None:
        """Remove a session's cache; return it if these weights computed it and these ids go on from it."""
        with self._lock:
            cache = None if session is None else self._caches.pop(session, None)
        if cache is None or cache.weight_version != weight_version or len(cache.ids) >= len(ids):
            return None
        return cache if ids[: len(cache.ids)] == cache.ids else None

    def clear(self) -> bool:
        """Drop all; return whether there was any."""
        with self._lock:
            had_any = bool(self._caches)
            self._caches.clear()
        return had_any


def _budget(device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return int(SHARE * (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)))
