"""Mistakes in environments, tools and reward functions."""

from __future__ import annotations

import gymnasium
import pytest

from gymnast import envs

from .answering import Mistake, check_answer, mistakes


@mistakes(
    ("ToolEnv(tool_time_out=5)", "ToolEnv has no 'tool_time_out'", "did you mean 'tool_timeout'", "max_malformed"),
    ("ToolEnv(system_prompt='Be brief.')", "no 'system_prompt'", "the first of those that reset_task returns"),
    ("ToolEnv(tool_timeout='5')", "tool_timeout must be a number of seconds", "got str: '5'"),
    ("ToolEnv(max_malformed=2.5)", "max_malformed must be a whole number", "got float: 2.5"),
    ("ToolEnv(tool_timeout=0)", "tool_timeout must be positive or None, got 0"),
    ("ToolEnv(tools='search')", "a tool is a function, got str", "write a `def`"),
    ("ToolEnv(tools={'a': 1})", "tools must be a list or a tuple", "got {'a': 1}"),
    ("ToolEnv(replay='missing.jsonl')", "there is no cassette", "missing.jsonl", "record= writes one"),
    ("ToolEnv(record='a.jsonl', replay='a.jsonl')", "record= appends calls", "give one of them"),
    ("ToolEnv(on_malformed='ignore')", "on_malformed must be one of ('feedback', 'end', 'text')", "got 'ignore'"),
    ("EpisodeLimits(max_turn=3)", "EpisodeLimits has no 'max_turn'", "did you mean 'max_turns'"),
    ("EpisodeLimits(max_turns='3')", "max_turns must be a whole number, got str: '3'"),
    ("EpisodeLimits(step_timeout=-1)", "step_timeout must be positive or None, got -1"),
    ("RolloutEngine(ToolEnv, ScriptedPolicy(['a']), max_turns=3)", "no 'max_turns'", "limits=EpisodeLimits(max_turns="),
    ("RolloutEngine(ToolEnv, ScriptedPolicy(['a']), rewards=[len])", "must be Rewards([function, ...])", "got list"),
    ("RolloutEngine(ToolEnv, ScriptedPolicy(['a']), limits=3)", "limits must be EpisodeLimits(...), got int: 3"),
    ("RolloutEngine(ToolEnv, ['a'])", "policy must be a Policy", "got list: ['a']"),
    ("ScriptedPolicy('a')", "a script is a list of answers or a function", "write [answer]"),
    ("ScriptedPolicy([{'question': 'a'}])", "text or a message", "got {'question': 'a'} at place 0"),
    ("OpenAIPolicy('m', base_url='localhost:8000')", "begins with http://", "ends with /v1", "got 'localhost:8000'"),
    ("OpenAIPolicy('m', base_url='http://a/v1', top_k=1)", "no parameter top_k", "extra_body={...}"),
)
def test_arguments(mistake: Mistake) -> None:
    check_answer(mistake, envs)


@mistakes(
    ("play(gymnasium.make('FrozenLake-v1'))", "FrozenLakeEnv takes actions of Discrete(4)", "GymnasiumEnv(id)"),
    ("play('FrozenLake-v1')", "FrozenLakeEnv takes actions of Discrete(4)", "GymnasiumEnv(id)"),
    ("play('Calculator')", "no Gymnasium id 'Calculator'", "environment=Calculator"),
    ("play(lambda: None)", "the environment factory returned NoneType", "not a gymnasium.Env"),
    ("play({})", "environment is an empty dict", "give it at least one environment"),
    ("play({'easy': ToolEnv()})", "'environment' column must name one of ['easy']", "got None"),
    ("class OfTRL:\n    def reset(self): ...\nplay(OfTRL)", "got <class 'typed.OfTRL'>", "derive", "from_trl.md"),
    ("class Game(Environment):\n    def step(self, message): return 1\nplay(Game)", "Game.step() must return", "got 1"),
    ("adapters.GymnasiumEnv(gymnasium.make('FrozenLake-v1'))", "got one environment", "its id, or lambda: "),
    ("adapters.GymnasiumEnv('FrozenLake-v1', actions=['up'])", "actions must be 4 different names", "got ['up']"),
    ("adapters.MCPTools('my-server --flag')", "got 'my-server --flag'", "StdioServerParameters(command="),
)
def test_environments_of_the_wrong_kind(mistake: Mistake) -> None:
    from gymnast.envs import adapters

    check_answer(mistake, envs, gymnasium=gymnasium, adapters=adapters)


@pytest.mark.parametrize("operation", ["'42' in c", "c == '42'", "c.strip() == '42'"])
def test_completions_that_are_taken_for_text(operation: str) -> None:
    typed = f"def f(completions): return [float({operation}) for c in completions]\nplay(ToolEnv, rewards=[f])"
    check_answer((typed, "reward function 'f'", "a list of messages, not text", "completion[-1]['content']"), envs)


GAME = """
class Game(ToolEnv):
    def reset_task(self, task):
        return [{"role": "user", "content": "Guess."}]

"""


@mistakes(
    (
        "    def reply(self, message):\n        self.terminated = 'yes' in message['content']\n        [message]",
        "Game.reply() returned None",
        "return the messages",
        "`return None` where it ends",
    ),
    (
        '    def guess(self, n: int) -> str:\n        """Guess.\n\n        Args:\n            n: It.\n        """',
        "Game has no tools, but guess could be",
        "mark each tool with @tool",
    ),
)
def test_methods_in_which_something_was_forgotten(mistake: Mistake) -> None:
    typed, *expected = mistake
    check_answer((f"{GAME}{typed}\nplay(Game)", *expected), envs)
