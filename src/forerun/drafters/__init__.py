"""Who guesses."""
