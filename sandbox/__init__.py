"""Run untrusted code: the executor contract and the executors that keep it."""
