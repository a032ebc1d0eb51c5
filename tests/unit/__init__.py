"""Tests without an engine, a model or a server."""
