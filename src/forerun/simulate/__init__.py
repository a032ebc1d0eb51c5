"""Engines on paper: what speculation does at sizes that are not at hand."""
