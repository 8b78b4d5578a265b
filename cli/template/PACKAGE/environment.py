"""The environment, its tasks, and a player that solves them."""

from gymnast.envs import ToolEnv, tool, tool_call

rows = [{"secret": number} for number in range(1, 8)]  # the tasks; an environment reads one row in each episode


class GuessNumber(ToolEnv):
    """Guess a number from 1 to 7; each guess is answered with too low, too high or right."""

    tasks = rows  # of an episode that is given no row

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
    for asked, reply in zip(messages[1::2], messages[2::2], strict=False):
        guess = asked["tool_calls"][0]["function"]["arguments"]["guess"]
        if reply["content"] == "right":
            return tool_call("final_answer", number=guess)
        low, high = (guess + 1, high) if reply["content"] == "too low" else (low, guess - 1)
    return tool_call("compare", guess=(low + high) // 2)
