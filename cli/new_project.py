"""The files of a new project."""

ENVIRONMENT = '''
"""An environment: guess a number from 1 to 7."""

from gymnast.envs import ToolEnv, tool, tool_call

rows = [{"secret": number} for number in range(1, 8)]  # the tasks; an environment reads one row in each episode


class GuessNumber(ToolEnv):
    def reset_task(self, task):
        self.secret = task["secret"]
        self.metrics["success"] = 0.0
        kind = "even" if self.secret % 2 == 0 else "odd"
        return [{"role": "user", "content": f"Find my number from 1 to 7. It is {kind}."}]

    @tool
    def compare(self, guess: int) -> str:
        """Ask how a guess compares with the number.

        Args:
            guess: The guess.
        """
        return "right" if guess == self.secret else "too low" if guess < self.secret else "too high"

    @tool(final=True)
    def final_answer(self, number: int) -> str:
        """Say which number it is, which ends the episode.

        Args:
            number: The number.
        """
        self.reward = self.metrics["success"] = float(number == self.secret)
        return "thank you"


def oracle(messages):
    """A player that is always right: it halves the range. `gymnast check` and the test play with it."""
    low, high = 1, 7
    for asked, reply in zip(messages[1::2], messages[2::2]):
        guess = asked["tool_calls"][0]["function"]["arguments"]["guess"]
        if reply["content"] == "right":
            return tool_call("final_answer", number=guess)
        low, high = (guess + 1, high) if reply["content"] == "too low" else (low, guess - 1)
    return tool_call("compare", guess=(low + high) // 2)
'''

TEST = '''
"""The environment without a model: a script plays in its place."""

from environment import GuessNumber, oracle, rows

from gymnast.envs import RolloutEngine, ScriptedPolicy, StopReason, tool_call


def test_the_oracle_wins_every_game():
    episodes = RolloutEngine(GuessNumber(), ScriptedPolicy(oracle)).play(rows)
    assert [episode.reward for episode in episodes] == [1.0] * len(rows)


def test_a_wrong_answer_earns_nothing():
    policy = ScriptedPolicy([tool_call("final_answer", number=1)])
    [episode] = RolloutEngine(GuessNumber(), policy).play([{"secret": 2}])
    assert (episode.reward, episode.stop) == (0.0, StopReason.FINAL_ANSWER)
'''

RUN = """
# gymnast train run.toml
environment = "environment.py:GuessNumber"
tasks = "environment.py:rows"
model = "Qwen/Qwen3-0.6B"
algorithm = "grpo"

[options] # of GRPOConfig; all are in gymnast's docs/reference/options.md
output_dir = "runs/PROJECT"
num_generations = 8 # episodes of each task, whose rewards are compared
per_device_train_batch_size = 8
gradient_accumulation_steps = 7 # all seven tasks in each step
max_completion_length = 2048
max_turns = 6
max_steps = 100
logging_steps = 1
log_episodes_steps = 10
"""

LAPTOP = """
# python tiny_model.py && gymnast train laptop.toml
environment = "environment.py:GuessNumber"
tasks = "environment.py:rows"
model = "./tiny-model" # tiny_model.py makes it

[options]
output_dir = "runs/laptop"
num_generations = 8
per_device_train_batch_size = 56 # all seven tasks in each step
learning_rate = 1e-3
max_turns = 6
max_steps = 15
logging_steps = 1
log_episodes_steps = 5
save_strategy = "no"
report_to = "none"
disable_tqdm = true
use_cpu = true
"""

TRAIN = '''
"""Trains in Python as `gymnast train laptop.toml` does, for changes that a run file cannot say."""

import sys
import tomllib
from pathlib import Path

from environment import GuessNumber, rows

from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress, RunFolder


def main(run_file="laptop.toml"):
    run = tomllib.loads(Path(run_file).read_text())
    args = GRPOConfig(**run["options"])
    callbacks = [RunFolder(args.output_dir), RichProgress()]
    trainer = GRPOTrainer(run["model"], GuessNumber(), args, rows, callbacks=callbacks)
    trainer.train()
    trainer.save_model(f"{args.output_dir}/model")


if __name__ == "__main__":
    main(*sys.argv[1:])
'''

TINY_MODEL = '''
"""Makes a tiny model, so that a laptop can try the training: it knows how to call the tools, and is seldom right."""

import random

from environment import GuessNumber, oracle, rows

from gymnast.envs import tool_call
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up


def demonstration(game, rng):
    """A game of the oracle, whose last answer is random in three games of four."""
    messages, _ = game.reset(options={"task": rng.choice(rows)})
    over = False
    while not over:
        call = oracle(messages)
        if call["tool_calls"][0]["function"]["name"] == "final_answer" and rng.random() < 0.75:
            call = tool_call("final_answer", number=rng.choice(rows)["secret"])
        replies, _, over, _, _ = game.step(call)
        messages = [*messages, call, *replies]
    return messages


def main():
    game, rng = GuessNumber(), random.Random(0)
    shown = [(demonstration(game, rng), game.tool_schemas()) for _ in range(500)]
    game.close()
    tokenizer = tokenizer_for(shown)
    model = make_tiny_model(tokenizer)
    print("showing a tiny model how the tools are called, in less than a minute ...", flush=True)
    warm_up(model, tokenizer, shown, steps=80)
    model.save_pretrained("tiny-model")
    tokenizer.save_pretrained("tiny-model")


if __name__ == "__main__":
    main()
'''

README = """
# PROJECT

An environment for gymnast, and the runs that train a model in it.

    pip install pytest && pytest                                              # the environment, without a model
    gymnast play environment.py:GuessNumber --tasks environment.py:rows       # you are the model
    gymnast check environment.py:GuessNumber --tasks environment.py:rows --oracle environment.py:oracle

    python tiny_model.py && gymnast train laptop.toml                         # a tiny model: a minute on a laptop
    gymnast why runs/laptop                                                   # why is the reward what it is?
    gymnast view runs/laptop --open                                           # the episodes, token by token

    gymnast train run.toml                                                    # a real model: needs a GPU

| File | Content |
|---|---|
| `environment.py` | the environment, its tasks, and a player that solves them |
| `test_environment.py` | its test |
| `run.toml` | the model, the tasks and the options of the training |
| `laptop.toml`, `tiny_model.py` | the same for a tiny model, which needs neither a download nor a GPU |
| `train.py` | the training in Python, from the same files: `python train.py laptop.toml` |
"""

FILES = {
    "environment.py": ENVIRONMENT,
    "test_environment.py": TEST,
    "run.toml": RUN,
    "laptop.toml": LAPTOP,
    "tiny_model.py": TINY_MODEL,
    "train.py": TRAIN,
    "README.md": README,
}
"""Names and contents; PROJECT stands for the name of the project."""
