"""Sequences of different lengths in the model's forward and backward pass: padded, one by one, or packed into one row.

    python -m benchmarks.gpu.packing --size 0.6B --longest 4096 [--small]

prints one line of JSON: seconds and megabytes at the peak of each, or the error, such as memory that does not suffice.
Without output head, in bfloat16 (autocast), with gradient checkpointing. Packed sequences are told apart by
`position_ids` that begin again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from .models import DEVICE, described, free_memory, make_model, peak_megabytes, synchronize

SHARES = [1.0, 0.63, 0.46, 0.37, 0.29, 0.22, 0.17, 0.12]
"""The lengths of eight sequences, as shares of the longest."""
REPEATS = 4


def padded(rows: list[torch.Tensor]) -> Iterator[dict[str, Any]]:
    mask = [torch.ones_like(row) for row in rows]
    pad: Any = torch.nn.utils.rnn.pad_sequence
    options = {"batch_first": True, "padding_side": "left"}
    yield {"input_ids": pad(rows, **options), "attention_mask": pad(mask, **options)}


def one_by_one(rows: list[torch.Tensor]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {"input_ids": row[None]}


def packed(rows: list[torch.Tensor]) -> Iterator[dict[str, Any]]:
    positions = [torch.arange(len(row), device=row.device) for row in rows]
    yield {"input_ids": torch.cat(rows)[None], "position_ids": torch.cat(positions)[None]}


WAYS = {"padded": padded, "one_by_one": one_by_one, "packed": packed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", required=True)
    parser.add_argument("--longest", type=int, required=True, help="tokens")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    size, longest = ("small", 64) if arguments.small else (arguments.size, arguments.longest)
    model = make_model(size).train()
    model.gradient_checkpointing_enable()
    numbers = torch.Generator().manual_seed(0)
    lengths = [round(share * longest) for share in SHARES]
    rows = [torch.randint(2, model.config.vocab_size, (length,), generator=numbers).to(DEVICE) for length in lengths]
    values: dict[str, Any] = {"tokens": sum(lengths), "padded_tokens": len(lengths) * longest}
    for name, way in WAYS.items():
        try:
            values |= {f"seconds_{name}": seconds_of(model, way, rows), f"megabytes_{name}": peak_megabytes()}
        except torch.OutOfMemoryError as error:
            values |= {f"error_{name}": str(error)[:300]}
    print(json.dumps(described(values)))


def seconds_of(model: Any, way: Any, rows: list[torch.Tensor]) -> float:
    """The median of a forward and backward pass over all rows; the first one tunes kernels."""
    seconds = []
    free_memory()
    for _ in range(REPEATS):
        synchronize()
        started = time.perf_counter()
        for inputs in way(rows):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                hidden_BLD = model.model(**inputs, use_cache=False).last_hidden_state
            hidden_BLD.float().pow(2).mean().backward()
        synchronize()
        seconds.append(time.perf_counter() - started)
        model.zero_grad()
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
