"""Drafters. Most look text up and need no model; `draft_model` runs one.

- `matches`: one earlier occurrence of the current context, as a row of numbers
- `context_index`: a growing text and an index of its contexts; `output_store`: earlier outputs by salt, with
  the same index; `context_lookup`: matches in such an index
- `corpus`: a sorted file, memory-mapped; `corpus_lookup`: matches in it
- `match_tree`: the most likely draft tree given the matches
- `suffix`: the drafter built from these
- `ngram_counts`, `ngram`: n-gram frequencies, and the drafter that chooses or samples from them
- `draft_model`: a smaller model of the same vocabulary; `beam_tree`: its draft trees
- `rebuildable`, `context_hash`: shared by the tables; `documents`, `corpus_builder`: building corpora
- `tree_merge`: merging the drafts of several drafters; `registry`: drafters by name
"""
