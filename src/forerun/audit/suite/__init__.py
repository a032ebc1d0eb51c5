"""A catalogue of checks for failures of speculative decoding that public issues describe."""
