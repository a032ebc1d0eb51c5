"""Who guesses. Text is looked up; no model is needed, and none is known here.

- `sightings`: what is known of one place where the current context was seen before
- `index`: one growing text, and where its contexts were seen; `store`: earlier outputs by salt, indexed the
  same way; `corpus`: a sorted file, mapped into memory
- `tree`: the most likely tree that a handful of sightings gives
- `suffix`: the drafter made of these
- `counts`, `ngram`: frequency tables, and the drafter that guesses and draws from them
- `growing`, `hashing`: what the tables share; `documents`, `corpus_builder`: making corpora
- `registry`: drafters by name
"""
