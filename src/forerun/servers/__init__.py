"""OpenAI-compatible servers: processes on loopback, requests, and parsing of responses."""
