"""Simulated engines: speculation on hardware that is not available."""
