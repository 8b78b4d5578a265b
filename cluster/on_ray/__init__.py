"""Hosts, rollout workers and vLLM servers as actors of a Ray cluster."""
