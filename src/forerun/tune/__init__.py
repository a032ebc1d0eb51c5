"""What should I use? A drafter and settings, from the prompts one has."""
