"""Tests of benchmarks and their records."""
