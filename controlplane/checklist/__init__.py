"""The go-live checklist of S1.9, held against the live fleet."""
