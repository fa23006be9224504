"""The router's hot modules as native code: built by mypyc from the same sources, taken only when they fit exactly."""
