"""Tests of commands and engines with tiny models."""
