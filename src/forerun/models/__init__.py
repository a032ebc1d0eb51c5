"""Running transformers models; the only room that imports transformers."""
