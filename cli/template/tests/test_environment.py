"""The environment without a model: a script plays in its place."""

from PACKAGE import GuessNumber, oracle, rows

from gymnast.envs import RolloutEngine, ScriptedPolicy, StopReason, tool_call


def test_the_oracle_wins_every_game():
    episodes = RolloutEngine(GuessNumber(), ScriptedPolicy(oracle)).play(rows)
    assert not any(episode.failure for episode in episodes), episodes[0].failure
    assert [episode.reward for episode in episodes] == [1.0] * len(rows)


def test_a_wrong_answer_earns_nothing():
    policy = ScriptedPolicy([tool_call("final_answer", number=1)])
    [episode] = RolloutEngine(GuessNumber(), policy).play([{"secret": 2}])
    assert episode.failure is None
    assert (episode.reward, episode.stop) == (0.0, StopReason.FINAL_ANSWER)
