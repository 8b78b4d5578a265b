"""Hosts behind a WebSocket, for machines without Ray."""
