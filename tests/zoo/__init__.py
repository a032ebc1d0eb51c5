"""A tiny OpenAI-compatible server that speculates, with the defects of public engines to be switched on."""
