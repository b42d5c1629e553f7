"""The terminal app. It shows a trace: a live run is a trace that still grows."""
