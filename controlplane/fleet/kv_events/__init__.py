"""KV events of the workers: what is stored, what is evicted, and how much the caches hold.

`messages` decodes, `tracker` follows one worker's cache (both pure), `link` owns one worker's sockets, `reporter` turns
a second into rows, `subscriber` holds all workers together. Token ids in events are never decoded; a salt
is looked up for the name that it belongs to (`owners`) and dropped.
"""
