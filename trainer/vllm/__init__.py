"""Generators that sample with vLLM, in this process or on servers, and how weights reach them."""
