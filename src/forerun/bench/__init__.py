"""Measures, and pictures of what was measured or is to be expected."""
