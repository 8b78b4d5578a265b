"""What ten screenshots of 512x384 an episode cost: an update's time and memory, and a picture's way into it.

    python -m benchmarks.vision [--quick]

takes an optimiser step of a tiny Qwen3-VL, once with the pictures and once with as many tokens of text, each in a
process of its own. It prints a table and writes benchmarks/results/vision_update.json. It fails if a round keeps more
than 1.1 times the bytes of its pictures.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL.Image
import PIL.ImageDraw
import torch

from gymnast.envs import Image
from gymnast.envs.tokens import Tokens, TokenTrace
from gymnast.trainer import GRPOConfig
from gymnast.trainer.chat.chat_format import ChatFormat
from gymnast.trainer.learning.losses import StepCounts
from gymnast.trainer.learning.objective import objective
from gymnast.trainer.learning.samples import Batch, Sample
from gymnast.trainer.models.images import ImageEncoder
from gymnast.trainer.models.output_head import OutputHead
from gymnast.trainer.options.derived import learning_settings
from gymnast.trainer.testing.tiny_vision import make_tiny_processor, make_tiny_vision_model

RESULTS = Path(__file__).parents[1] / "results" / "vision_update.json"
TARGET = 1.1  # times the bytes of its pictures that a round keeps
SIZE, SHOTS = (512, 384), 10
WORDS = ["open", "close", "save", "search", "settings", "account", "message", "tomorrow", "invoice", "delete"]


def screenshot(seed: int) -> Image:
    """Draw windows and words; its PNG has some 35 kB, as a page's."""
    chosen, drawn = random.Random(seed), PIL.Image.new("RGB", SIZE, "white")
    pen = PIL.ImageDraw.Draw(drawn)
    for _ in range(30):
        x, y = (chosen.randrange(side) for side in SIZE)
        colour = tuple(chosen.randrange(256) for _ in range(3))
        pen.rectangle((x, y, x + chosen.randrange(20, 120), y + chosen.randrange(10, 60)), fill=colour)
        pen.text((chosen.randrange(SIZE[0]), y), " ".join(chosen.choices(WORDS, k=6)), fill="black")
    return Image.of(drawn)


def episode(chat: ChatFormat, number: int, *, as_text: bool) -> Sample:
    """Return ten turns, each behind a screenshot, or behind as many tokens of text."""
    trace = TokenTrace.of(Tokens(chat.prompt_tokens([{"role": "user", "content": "look"}], []).ids))
    for turn in range(SHOTS):
        part = {"type": "image", "image": screenshot(number * SHOTS + turn)}
        seen = chat.observation_tokens([{"role": "user", "content": [part]}], ended_by=None, last=False)
        trace.append_observation(Tokens([7] * len(seen)) if as_text else seen)
        trace.append_sampled([5, 6, 7], [-1.0] * 3)
    sample = Sample.of(trace)
    sample.advantages = torch.tensor(sample.mask) * (1.0 if number % 2 else -1.0)
    return sample


def update(episodes: int, *, as_text: bool) -> dict[str, float]:
    """Take a step; return its seconds, its peak of memory, and what the round kept, in megabytes."""
    processor = make_tiny_processor(WORDS, 320)
    model, images = make_tiny_vision_model(processor), ImageEncoder(processor)
    chat = ChatFormat(processor.tokenizer, images=images)
    settings, head = learning_settings(GRPOConfig(use_cpu=True, report_to="none")), OutputHead.of(model)
    episode(chat, 0, as_text=as_text)  # what is imported and remembered at the first one
    tracemalloc.start()
    samples = [[episode(chat, number, as_text=as_text)] for number in range(episodes)]
    batch = Batch.of(samples, settings.changed(max_tokens_per_batch=1))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    counts = StepCounts(
        loss_tokens=batch.loss_tokens, sequences=batch.sequences, batch_loss_tokens=0, batches=1, processes=1
    )
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for part in batch.micro_batches:
        objective(model, part, settings, counts, head=head, images=images)[0].backward()
    found = {"seconds": time.process_time() - began, "kept": kept / 1e6}
    found["peak"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e6
    found["pictures"] = sum(len(span.image.data) for [sample] in samples for span in sample.images) / 1e6
    return found | {"tokens": samples[0][0].length}


def milliseconds(work: Callable[[], Any]) -> float:
    """Return the processor's time of a call, the least of ten."""
    times = []
    for _ in range(10):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return round(1000 * min(times), 2)


def ways() -> dict[str, float]:
    """Return the milliseconds of each part of a picture's way."""
    image, processor = screenshot(1), make_tiny_processor(WORDS, 320)
    images, pixels = ImageEncoder(processor), SIZE[0] * SIZE[1] // 2
    halving = ImageEncoder(processor, max_pixels=pixels)
    ids, mask = torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.long)
    return {
        "decode": milliseconds(image.open),
        "features, with decoding": milliseconds(lambda: images.inputs(ids, mask, [[image]])),
        "max_image_pixels, the first time": milliseconds(lambda: image.at_most(pixels)),
        "max_image_pixels, later": milliseconds(lambda: halving.shown(image)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two episodes; writes no file")
    parser.add_argument("--one", choices=["pictures", "text"], help="one update, as JSON: the program calls itself")
    arguments = parser.parse_args()
    episodes = 2 if arguments.quick else 8
    if arguments.one:
        print(json.dumps(update(episodes, as_text=arguments.one == "text")))
        return
    found: dict[str, Any] = {"episodes": episodes, "milliseconds": ways()}
    for name in ("pictures", "text"):
        command = [sys.executable, "-m", "benchmarks.vision", "--one", name, *(["--quick"] if arguments.quick else [])]
        found[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    shown, text = found["pictures"], found["text"]
    # The tokens' own lists and tensors are in both.
    found["kept"] = round((shown["kept"] - text["kept"]) / shown["pictures"], 3)
    for name, value in found["milliseconds"].items():
        print(f"{name:40} {value:8.2f} ms")
    for name in ("pictures", "text"):
        one = found[name]
        print(f"{f'update with {name}':40} {one['seconds']:8.1f} s of one core, peak {one['peak']:.0f} MB")
    print(f"{'a round keeps':40} {found['kept']:8.2f} times the bytes of its pictures (at most {TARGET})")
    if not arguments.quick:
        RESULTS.write_text(json.dumps({"machine": platform.machine(), **found}, indent=2) + "\n")
    sys.exit(found["kept"] > TARGET)


if __name__ == "__main__":
    main()
