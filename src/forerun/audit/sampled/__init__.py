"""Sequential tests, with a bounded error rate, of whether samples follow the target distribution."""
