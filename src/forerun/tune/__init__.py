"""Recommendation of a drafter and its settings, measured on the user's own prompts."""
