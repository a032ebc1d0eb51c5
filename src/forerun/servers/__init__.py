"""Servers that speak as OpenAI does: started on loopback, asked, and understood."""
