"""The terminal app. It shows a trace: a live run is a trace that still grows."""

import os

# Before textual is imported: from key to paint in one short frame.
os.environ.setdefault("TEXTUAL_FPS", "120")
