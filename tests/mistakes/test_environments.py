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
    ("ToolEnv(max_result_chars=0)", "max_result_chars must be positive or None, got 0"),
    ("ToolEnv(render_mode='rgb_array')", "has the render modes", "'ansi'", "got 'rgb_array'"),
    ("ToolEnv(tool_timeout=0)", "tool_timeout must be positive or None, got 0"),
    ("ToolEnv(tools='search')", "a tool is a function, got str", "write a `def`"),
    ("ToolEnv(tools={'a': 1})", "tools must be a list or a tuple", "got {'a': 1}"),
    ("ToolEnv(replay='missing.jsonl')", "there is no cassette", "missing.jsonl", "record= writes one"),
    ("ToolEnv(record='a.jsonl', replay='a.jsonl')", "record= appends calls", "give one of them"),
    ("ToolEnv(tasks={'prompt': 'a'})", "tasks must be a list of rows, got dict: {'prompt': 'a'}"),
    ("ToolEnv(tasks=['a']).reset()", "a task is a row of a data set, which is a mapping, got str: 'a'"),
    ("EpisodeLimits(3)", "takes 0 positional arguments, got 1", "max_turns=..."),
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
    ("play('Calculator')", "near names are 'gymnast/Calculator-v0'", "environment=Calculator"),
    ("play(lambda: None)", "the environment factory returned NoneType", "not a gymnasium.Env"),
    ("play({})", "environment is an empty dict", "give it at least one environment"),
    ("play({'easy': ToolEnv()})", "'environment' column must name one of ['easy']", "got None"),
    ("class OfTRL:\n    def reset(self): ...\nplay(OfTRL)", "got <class 'typed.OfTRL'>", "derive", "from_trl.md"),
    ("class Game(Environment):\n    def step(self, message): return 1\nplay(Game)", "Game.step() must return", "got 1"),
    ("adapters.GymnasiumEnv(gymnasium.make('FrozenLake-v1'))", "got one environment", "its id, or lambda: "),
    ("adapters.GymnasiumEnv('CartPole')", "no Gymnasium id 'CartPole'", "did you mean CartPole-v"),
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
    ("    def grade(self):\n        return 1.0", "Game.grade takes (self)", "write `def grade(self, stop)`"),
    ("    def reply(self):\n        return []", "Game.reply takes (self)", "write `def reply(self, message)`"),
    ("    def reset_task(self):\n        return []", "Game.reset_task takes (self)", "`def reset_task(self, task)`"),
    (
        "    def reset_task(self, task):\n        return 'Hello'",
        "Game.reset_task() must give a list",
        "got str: 'Hello'",
    ),
    ("    def reset_task(self, task):\n        self.a = 1", "Game.reset_task() must give a list", "got NoneType"),
    (
        "    def reset_task(self, task):\n        return [{'role': 'human'}]",
        "at place 0",
        "'role' must be",
        "got 'human'",
    ),
    (
        "    def reset_task(self, task):\n        return [{'role': 'user', 'text': 'a'}]",
        "has 'content'",
        "['role', 'text']",
    ),
    ("    def reset_task(self, task):\n        return [{'role': 'user'}], {}", "got list", "alone, without info"),
    ("    def reply(self, message):\n        self.rewards = 1", "self.rewards = 1 has no effect", "mean self.reward?"),
    ("    def reset_task(self, task):\n        self.metrics = ['a']", "self.metrics must be a dict, got list: ['a']"),
    ("    def reset_task(self, task):\n        return task.prompt", "a row is a dict", "write row['prompt']"),
    ("    def reset_task(self, task):\n        return ['Hi']", "at place 0", "such as {'role': ", "got str"),
    ("    def reply(self, message):\n        return 'no'", "Game.reply() must give a list of messages, got str: 'no'"),
    ("    def reward(self):\n        return 1.0", "Game.reward is <function", "give such a method another name"),
    ("    tools = [print]", "Game.tools is", "ToolEnv([...]), or assign in reset_task"),
    ("    @tool\n    def step(self) -> str:\n        'Go.'", "Game.step", "rename the method", "@tool(name='step')"),
    ("    @tool\n    def go(far: int) -> str:\n        'Go.'", "Game.go is a method", "is self, got far"),
)
def test_methods_in_which_something_was_forgotten(mistake: Mistake) -> None:
    typed, *expected = mistake
    check_answer((f"{GAME}{typed}\nplay(Game)", *expected), envs)


@mistakes(
    ("@tool(finale=True)\ndef f() -> str: ...", "@tool has no 'finale'", "did you mean 'final'"),
    ("@tool(timeout='5')\ndef f() -> str: ...", "timeout must be a number of seconds, got str: '5'"),
    ("@tool(final=True, parallel=True)\ndef f() -> str: ...", "cannot be both final and parallel"),
    ("def f(x):\n    'Find.'\nToolEnv([f])", "parameter 'x' has no type hint", "`x: int`"),
    ("def f(x: int): ...\nToolEnv([f])", "tool 'f' has no docstring", "describes the tool to the model"),
    ("def f(x: int):\n    'Find.'\nToolEnv([f])", "parameter 'x' has no entry in the docstring", "under 'Args:'"),
    ("def f(*x: int):\n    'Find.'\nToolEnv([f])", "must be an ordinary named parameter"),
    ("def f():\n    'Find.'\nToolEnv([f, f])", "two tools named 'f'", "@tool(name=...)"),
    ("ToolEnv([3])", "a tool is a function, got int: 3", "write a `def`"),
    ("ToolEnv([lambda: 1])", "'<lambda>' is not a name for a tool", "@tool(name=...)"),
    ("ToolEnv(final_tools=['submitt'])", "submitt"),
    ("ToolEnv(final_tools='submit')", "final_tools", "'submit'"),
    ("tool_call('f', {'x': 1})", "tool_call('f', ...) takes arguments by name", "**dict", "got {'x': 1}"),
    ("class Oracle: ...\nScriptedPolicy(Oracle)", "a list of answers or a function, got the class Oracle"),
    ("Rewards(len)", "takes a list of reward functions, got one", "Rewards([len])"),
    ("Rewards([3])", "a reward function must be callable, got int: 3"),
    ("Rewards([len, len])", "need distinct names", "got ['len', 'len']", "`__name__`"),
    ("Rewards([len], [1.0, 2.0])", "got 1 reward functions and 2 reward_weights"),
    ("Rewards([len], timeout='5')", "reward_timeout must be a number of seconds, got str: '5'"),
    ("def f(completions): return 1.0\nplay(ToolEnv, rewards=[f])", "must return a list of 1 numbers or None, got 1.0"),
    ("def f(completions, answer): ...\nplay(ToolEnv, rewards=[f])", "requires ['answer']", "called with", "**columns"),
    ("def f(completions): return []\nplay(ToolEnv, rewards=[f])", "returned 0 rewards for 1 episodes"),
    ("matches('[[')", "not a JMESPath expression: '[['"),
)
def test_tools_and_reward_functions(mistake: Mistake) -> None:
    check_answer(mistake, envs)
