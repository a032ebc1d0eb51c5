"""Tests with real engines and the real model."""
