"""Proofs that speculation changed nothing. `exact` proves forerun's own core by enumeration."""
