"""A block of the pool in words: who holds it, what is in it, how it came to it."""

from typing import Any

from rich.text import Text

from ...tour.text import printable
from ...tour.text import token as shown_token
from ...tour.trace import Event
from .. import theme
from ..lines import BOLD, wrap
from ..pane import name
from ..past import Past, filled, of_block
from ..view import View


def block_lines(view: View, block: int, width: int) -> list[Text]:
    """All that there is to say of a block."""
    blocks = view.state["blocks"]
    if not 0 <= block < blocks["total"]:
        return [Text(f"There is no block {block}.", BOLD)]
    owners = blocks["owners"].get(str(block)) or []
    lines = [_head(view, block, owners)]
    lines += _content(view, block, owners, width) if owners else []
    past = of_block(view.trace, view.position, block)
    if len(past.events) > 1:
        lines.append(Text("newest first:", theme.style("dim")))
    for event in past.events:
        lines.append(
            Text.assemble(
                (f"step {event.step}  ", theme.style("dim")), printable(_told(event, block))
            )
        )
    return lines + earlier(past)


def earlier(past: Past) -> list[Text]:
    """Say so if a look back did not reach the beginning."""
    if past.before is None:
        return []
    return [Text(f"(what was before step {past.before} is not told)", theme.style("dim"))]


def _head(view: View, block: int, owners: list[str]) -> Text:
    blocks = view.state["blocks"]
    key = str(block)
    line = Text(f"block {block}  ", BOLD)
    if owners:
        line.append("held by ")
        for seq_id in owners[:8]:
            line = Text.assemble(line, name(view, seq_id), " ")
        line.append(f".. {len(owners) - 8} more " if len(owners) > 8 else "")
        line.append(f"(ref_count {blocks['ref_count'].get(key, '?')})")
    else:
        line.append("free, its content still cached" if key in blocks["hash"] else "free and empty")
    known = blocks["hash"].get(key)
    return line.append(f"  hash {printable(str(known))[:8]}" if known else "", theme.style("dim"))


def _content(view: View, block: int, owners: list[str], width: int) -> list[Text]:
    """The tokens whose keys and values the block holds."""
    size = view.state["blocks"]["size"]
    seq: dict[str, Any] = view.state["seqs"][owners[0]]
    index = seq["block_table"].index(block)
    first = index * size
    computed = min(size, max(0, seq["num_cached_tokens"] - first))
    now = min(size, max(0, seq["num_cached_tokens"] + seq["num_scheduled_tokens"] - first))
    words = " ".join(shown_token(piece) for piece in seq["pieces"][first : first + now][:64])
    text = f"filled {computed}/{size}"
    if now > computed:
        text += f", {now - computed} more in this step"
    if computed == size:
        text += _when(view, block, owners[0], first + size)
    place = f"{text}; entry {index} of {owners[0]}'s table, positions {first}–{first + size - 1}"
    return [*wrap(printable(place), width), *(wrap(words, width) if words else [])]


def _when(view: View, block: int, seq_id: str, tokens: int) -> str:
    """When a full block became full: the stop that gave it its hash, or the one that counted its last token."""
    for event in of_block(view.trace, view.position, block).events:
        if event.stop == "hash_blocks":
            return f" since step {event.step} (hash_blocks)"
        if event.stop in ("may_append", "evict"):
            break
    found = filled(view.trace, view.position, seq_id, tokens)
    return f" since step {found.step} (postprocess)" if found else ""


def _told(event: Event, block: int) -> str:
    facts, seq = event.facts, event.facts.get("seq")
    if event.stop == "allocate":
        hit = block in facts.get("hits", ())
        return f"shared by {seq}: a prefix hit" if hit else f"taken by {seq} (allocate)"
    if event.stop == "may_append":
        return f"taken by {seq}, which grew (may_append)"
    if event.stop == "hash_blocks":
        return f"full: {seq}'s tokens get a hash (hash_blocks)"
    if event.stop == "evict":
        return "its content is forgotten (evict)"
    freed = block in facts.get("freed", ())
    return f"let go by {seq}" + (" and free (deallocate)" if freed else " (deallocate)")
