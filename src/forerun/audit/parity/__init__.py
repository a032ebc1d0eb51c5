"""Audits of identical output, token for token: at temperature 0, and with seeds."""
