"""Batch: rows that are sampled at the same time, padded only as far as that is cheaper than another forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from .decoding import Decoding, Row
from .prefill import Prefill
from .sampling import Sampling


class Batch:
    """Rows of one `Sampling` and one version of the weights, in one or several decodings.

    Each decoding has a forward pass of its own, which reads all weights. In one decoding, rows are padded to the
    longest, and padding is read, too. So decodings stay apart where the padding is more bytes than the weights.
    """

    def __init__(self, prefill: Prefill, sampling: Sampling, weight_version: int) -> None:
        self.sampling = sampling
        self.weight_version = weight_version
        self.decodings: list[Decoding] = []
        self._prefill = prefill
        self._weight_bytes = sum(weight.nbytes for weight in prefill.model.parameters())

    @property
    def size(self) -> int:
        """The number of rows that are decoded."""
        return sum(len(decoding.rows) for decoding in self.decodings)

    @property
    def can_join(self) -> bool:
        """Whether other rows may be added, now that these have begun."""
        return all(decoding.can_join for decoding in self.decodings)

    def add(self, rows: Sequence[Row]) -> None:
        """Prefill these rows, and decode them from now on. If it fails, those that were here before can go on."""
        made = self._prefill(rows, self.weight_version)
        self._group([*self.decodings, *made])

    def step(self) -> None:
        """Sample one token for each row."""
        for decoding in self.decodings:
            decoding.step()
        self._group(self.decodings)

    def _group(self, decodings: list[Decoding]) -> None:
        """Join decodings of similar length."""
        self.decodings = []
        for decoding in sorted(decodings, key=lambda decoding: decoding.columns):
            last = self.decodings[-1] if self.decodings else None
            if not decoding.rows:
                continue
            if last is not None and self._belong_together(last, decoding):
                last.join(decoding)
            else:
                self.decodings.append(decoding)

    def _belong_together(self, one: Decoding, other: Decoding) -> bool:
        return one.can_join and other.can_join and one.bytes_of_padding(other) <= self._weight_bytes
