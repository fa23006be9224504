"""Request logs of others as traces for the fleet simulation: lengths, times and hashes, no text."""
