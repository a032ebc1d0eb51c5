"""Is the law of what a server samples the target's? Sequential tests with a bound on the error rate."""
