"""Episodes to a loss: samples, groups, advantages, log-probabilities, losses; `loop/steps.py` calls them in order."""
