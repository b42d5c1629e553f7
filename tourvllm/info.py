"""What a trace holds, in a few lines."""

from collections import Counter

from .tour.text import printable
from .tour.trace import Trace


def describe(trace: Trace) -> str:
    """The lines that `tourvllm info` prints."""
    header = trace.header or {}
    scenario, engine = trace.table("scenario"), trace.table("engine")
    model, platform = trace.table("model"), trace.table("platform")
    settings = scenario.get("settings")
    changes = settings if isinstance(settings, dict) else {}
    lines = [
        _line("scenario", f"{scenario.get('name', '?')}: {scenario.get('title', '')}"),
        _line("changes", ", ".join(f"{k}={v}" for k, v in changes.items()) or "none"),
        _line("engine", ", ".join(f"{key} {value}" for key, value in engine.items())),
        _line("model", f"{model.get('name', '?')} ({model.get('architecture', '?')})"),
        _line(
            "platform",
            ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in platform.items()),
        ),
        _line("recorded", str(header.get("created", "?"))),
        _line("length", f"{len(trace):,} events in {len(trace.steps):,} steps"),
        _line("marks", _marks(trace)),
        _line("outcome", str((trace.closing or {}).get("outcome", "unknown"))),
        _line("digest", f"{trace.digest()[:16]} ({_digest_state(trace)})"),
    ]
    if trace.problem:
        lines.append(_line("problem", trace.problem))
    return "\n".join(lines)


def _line(name: str, text: str) -> str:
    return f"{name:<9} {printable(text)}"


def _marks(trace: Trace) -> str:
    words = {"P": "preempt", "F": "finish", "E": "evict", "R": "reject", "B": "bookmark"}
    counts = Counter(mark.letter for mark in trace.marks)
    return (
        ", ".join(f"{word} {counts[letter]}" for letter, word in words.items() if counts[letter])
        or "none"
    )


def _digest_state(trace: Trace) -> str:
    if trace.digest_matches is None:
        return "the closing line is missing"
    return "as recorded" if trace.digest_matches else "NOT the one recorded"
