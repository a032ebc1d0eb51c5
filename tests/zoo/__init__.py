"""A tiny OpenAI-compatible server with speculative decoding and switchable defects of public engines."""
