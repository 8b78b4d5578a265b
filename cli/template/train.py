"""Trains in Python as `gymnast train laptop.toml` does, for changes that a run file cannot say."""

import sys
import tomllib
from pathlib import Path

from PACKAGE import GuessNumber, rows

from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress


def main(run_file="laptop.toml"):
    run = tomllib.loads(Path(run_file).read_text())
    args = GRPOConfig(**run["options"])
    trainer = GRPOTrainer(run["model"], GuessNumber(), args, rows, callbacks=RichProgress())
    trainer.train()
    trainer.save_model(f"{args.output_dir}/model")


if __name__ == "__main__":
    main(*sys.argv[1:])
