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
        if any(map(game.is_final, call.get("tool_calls", []))) and rng.random() < 0.75:
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
