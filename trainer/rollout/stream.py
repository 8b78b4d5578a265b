"""Stream: the rows of a data set that is read while it is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Protocol, TypeGuard

Row = Mapping[str, Any]


class RowStream(Protocol):
    """A data set without a length, in an order of its own, such as a `datasets.IterableDataset`."""

    def __iter__(self) -> Iterator[Row]: ...
    def set_epoch(self, epoch: int) -> None: ...
    def take(self, n: int) -> RowStream: ...


def is_stream(rows: Any) -> TypeGuard[RowStream]:
    """Return whether rows are a stream."""
    return hasattr(rows, "take") and hasattr(rows, "set_epoch") and not hasattr(rows, "__len__")


class Stream:
    """The rows of a stream by their places in an endless sequence: after the last row the next pass begins.

    The latest `kept` rows can be looked up again; for an earlier one the stream is read from its beginning, as it is
    when a training is resumed. So the same place has the same row if the stream has the same order each time.
    """

    def __init__(self, data: RowStream, *, kept: int) -> None:
        self.data = data
        self._latest: deque[tuple[int, int, Row]] = deque(maxlen=kept)
        self._begin()

    def _begin(self) -> None:
        self._latest.clear()
        self._next, self._rows = 0, self._read()

    def _read(self) -> Iterator[tuple[int, int, Row]]:
        for visit in count():
            self.data.set_epoch(visit)  # shuffles anew
            is_empty = True
            for index, row in enumerate(self.data):
                is_empty = False
                yield visit, index, row
            if is_empty:
                raise ValueError(
                    f"the stream of rows is empty when it is read again (pass {visit + 1}): it must begin anew"
                )

    def at(self, place: int) -> tuple[int, int, Row]:
        """Return the number of the pass that a place is in, the number of the row in this pass, and the row."""
        if place < self._next - len(self._latest):
            self._begin()
        while self._next <= place:
            self._latest.append(next(self._rows))
            self._next += 1
        return self._latest[place - self._next]
