"""Exact prefixes: the worker's own block hashes computed here, and the index of the blocks workers say they hold.

`block_hashes` the worker's formula; `segments` a text cut where tokens never cross, with known pieces' token ids;
`chains` known prompts' block hashes; `heads` known conversations by their bytes; `block_index` and `event_stream` what
KV events say.
"""
