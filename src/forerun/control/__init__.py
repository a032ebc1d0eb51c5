"""How far to guess. So far: which guesses pay at a given price."""
