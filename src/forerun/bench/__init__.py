"""Benchmarks of servers and drafters, and figures of measurements and of the theory."""
