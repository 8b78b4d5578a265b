"""A learning curve: the calculator's tiny model, trained on this machine's device.

    python -m benchmarks.gpu.learning --algorithm grpo|rloo [--small]

prints one line of JSON: success on held-out tasks before and after, seconds, and the reward of each step.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from .models import DEVICE, described

STEPS = 40  # the example takes 160; this model is bound by Python and by starting kernels, not by a GPU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=["grpo", "rloo"], required=True)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    calculator: Any = importlib.import_module("calculator")
    trainer_class, config_class = calculator.ALGORITHMS[arguments.algorithm]
    model, tokenizer = calculator.tiny_model(1, Console(stderr=True))
    tasks = calculator.held_out_tasks(1)[: 16 if arguments.small else None]
    with tempfile.TemporaryDirectory() as folder:
        config = config_class(
            output_dir=folder,
            record_run=False,
            seed=1,
            max_steps=2 if arguments.small else STEPS,
            learning_rate=2e-4,
            lr_scheduler_type="linear",
            per_device_train_batch_size=16 if arguments.small else 128,
            max_completion_length=128,
            beta=0.0,
            max_turns=4,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=DEVICE == "cpu",
        )
        trainer = trainer_class(
            model=model,
            environment=calculator.Calculator(),
            args=config,
            train_dataset=calculator.training_tasks(1),
            processing_class=tokenizer,
        )
        before = calculator.success(trainer.rollout(tasks))
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
        after = calculator.success(trainer.rollout(tasks))
    rewards = [round(entry["reward"], 4) for entry in trainer.state.log_history if "reward" in entry]
    values = {"success_before": before, "success_after": after, "seconds": seconds, "rewards": rewards}
    print(json.dumps(described(values)))


if __name__ == "__main__":
    main()
