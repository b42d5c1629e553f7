"""What a tour is: stops, state, patches, trace, cursor, narration.

Nothing in this package imports textual, torch or the engine: a trace can be read, checked and walked by any
program, whatever engine recorded it.
"""
