"""Streamed text: what is given out is never taken back, holds whole characters, and never begins a stop string.

The reference knows the bytes of each token and decodes them all at once, after every token.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import P, Watched, greedy, make_engine, pieces_tokenizer, say
from tokenizers import Tokenizer, decoders, models
from tourvllm.engine.detokenizer import REPLACEMENT, Detokenizer, TextStream
from transformers import PreTrainedTokenizerFast

BYTES = [bytes([byte]) for byte in range(256)]
PIECES = ["ab", " a", "b", "é", " é", "你", "好a", "😀", "\n", "ba b", "  "]
BROKEN = [b"a\xc3", b"\xa9b", b"\xe4\xbd", b"\x98\x80", b" \xf0\x9f"]
TOKENS = [*dict.fromkeys([*BYTES, *(piece.encode() for piece in PIECES), *BROKEN])]


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2, Llama 3 and Qwen: a token is any bytes, written with a letter for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    letter = {byte: chr(byte) if byte in plain else chr(next(others)) for byte in range(256)}
    vocab = {"".join(letter[byte] for byte in token): i for i, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="a"))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


LETTERS = [*dict.fromkeys([*PIECES, *map(chr, range(32, 127))])]
FALLBACK = [*BYTES, *(piece.encode() for piece in LETTERS)]


def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2 and TinyLlama: a token is a text, or one byte written <0xC3>."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    names += [piece.replace(" ", "▁") for piece in LETTERS]
    vocab = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="b"))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()


def letters(data: bytes) -> list[int]:
    """Byte fallback's tokens: a piece for each letter that has one, else single bytes."""
    one = {piece: 256 + i for i, piece in enumerate(LETTERS)}
    return [one.get(chr(byte), byte) if byte < 128 else byte for byte in data]


def stream(tokenizer, prompt, ids, stop=(), min_tokens=0) -> tuple[list[str], TextStream]:
    """What a user sees after each token and at the end, and the stream."""
    found, pieces = TextStream(Detokenizer(tokenizer, prompt), [*stop]), []
    for count, token_id in enumerate(ids, 1):
        pieces.append(found.push(token_id, may_stop=count >= min_tokens))
        if found.stopped_by is not None:
            break
    pieces.append(found.finish())
    return pieces, found


def new_text(prompt: bytes, output: bytes) -> str:
    """The text that `output` adds; a character that the prompt began and it completed is new."""
    tail = b""
    for length in (1, 2, 3):
        last = prompt[-length:]
        lossy = last.decode("utf-8", "replace")
        # All of `last` is the beginning of one character.
        if len(last) == length and lossy == REPLACEMENT and is_beginning(last):
            tail = last
    text = (tail + output).decode("utf-8", "replace")
    return text[1:] if tail and text.startswith(REPLACEMENT) else text


def is_beginning(data: bytes) -> bool:
    """Whether more bytes can make one character of it."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and error.start == 0
    return False


def known_texts(prompt: bytes, tokens: list[bytes]) -> list[str]:
    """The text that is certain after 0, 1, .. tokens: while the last bytes are no character, as before."""
    known = [""]
    for count in range(1, len(tokens) + 1):
        text = new_text(prompt, b"".join(tokens[:count]))
        known.append(known[-1] if text.endswith(REPLACEMENT) else text)
    return known


def first_stop(text: str, stop: list[str], too_early: int) -> int | None:
    """Where the first stop string begins that ends behind `too_early`."""
    places = [
        at
        for one in stop
        for at in range(len(text))
        if text.startswith(one, at) and at + len(one) > too_early
    ]
    return min(places, default=None)


def expected_text(
    prompt: bytes, tokens: list[bytes], stop: list[str], min_tokens: int
) -> tuple[str, int]:
    """The final text, and after how many tokens the request ends."""
    known = known_texts(prompt, tokens)
    too_early = len(known[min(max(min_tokens - 1, 0), len(tokens))])
    for count in range(max(min_tokens, 1), len(tokens) + 1):
        at = first_stop(known[count], stop, too_early)
        if at is not None:
            return known[count][:at], count
    whole = new_text(prompt, b"".join(tokens))
    at = first_stop(whole, stop, too_early)
    return whole[:at], len(tokens)


stops = st.lists(st.text("ab é你\n", min_size=1, max_size=4), max_size=3)
common = st.sampled_from([*range(256, len(TOKENS)), ord("a"), ord("b"), ord(" ")])
byte_ids = st.one_of(common, common, common, st.integers(0, 255))


@settings(max_examples=600)
@given(
    prompt=st.lists(byte_ids, min_size=1, max_size=7),
    ids=st.lists(byte_ids, max_size=16),
    stop=stops,
    min_tokens=st.integers(0, 6),
)
def test_any_byte_level_tokens_and_stops(prompt, ids, stop, min_tokens):
    before, tokens = b"".join(TOKENS[i] for i in prompt), [TOKENS[i] for i in ids]
    text, count = expected_text(before, tokens, stop, min_tokens)
    pieces, found = stream(BYTE_LEVEL, prompt, ids, stop, min_tokens)
    assert "".join(pieces) == found.text == text
    assert len(pieces) - 1 == count
    known, given_out = known_texts(before, tokens), ""
    for after, piece in enumerate(pieces[:-1], 1):
        given_out += piece
        # Nothing is held that could not begin a stop string.
        if found.stopped_by is None:
            assert given_out == without_a_beginning(known[after], stop)


def without_a_beginning(text: str, stop: list[str]) -> str:
    """The text without the longest end that is the beginning of a stop string."""
    for at in range(len(text)):
        if any(one.startswith(text[at:]) and one != text[at:] for one in stop):
            return text[:at]
    return text


@settings(max_examples=300)
@given(st.text(max_size=30), st.text(max_size=30), stops, st.data())
def test_any_text_in_any_bytes_is_streamed_in_whole_characters(prompt, text, stop, data):
    """Both kinds of tokenizers; the prompt ends where a character ends."""
    before, answer = (each.encode("utf-8", "ignore") for each in ("A" + prompt, text))
    if data.draw(st.booleans()):
        tokenizer, told, ids = BYTE_LEVEL, [*before], [*answer]
    else:
        tokenizer, told, ids = BYTE_FALLBACK, letters(before), letters(answer)
    pieces, found = stream(tokenizer, told, ids, stop)
    assert REPLACEMENT not in "".join(pieces) or REPLACEMENT in text
    expected, _ = expected_text(before, [bytes([byte]) for byte in answer], stop, 0)
    assert "".join(pieces) == found.text == expected


fallback_ids = st.sampled_from([*range(256, 256 + len(PIECES)), *letters(b"a b\n")])


@settings(max_examples=300)
@given(st.lists(fallback_ids, min_size=1, max_size=8), st.lists(fallback_ids, max_size=16), stops)
def test_any_byte_fallback_pieces_and_stops(prompt, ids, stop):
    tokens = [FALLBACK[i] for i in ids]
    text, count = expected_text(b"A", tokens, stop, 0)
    pieces, found = stream(BYTE_FALLBACK, prompt, ids, stop)
    assert "".join(pieces) == found.text == text
    assert len(pieces) - 1 == count


@settings(max_examples=300)
@given(st.lists(st.sampled_from([*range(32), *range(127, len(FALLBACK))]), max_size=12))
def test_no_byte_is_lost_or_told_twice(ids):
    """Bytes that make no character are told as one U+FFFD each (byte fallback)."""
    pieces, found = stream(BYTE_FALLBACK, letters(b"x"), ids)
    assert "".join(pieces) == found.text
    told = len(found.text.replace(REPLACEMENT, "?").encode())
    assert told == sum(len(FALLBACK[i]) for i in ids)


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        (b"caf\xc3", b"\xa9 x", ["é", " ", "x", ""]),
        (b"a\xf0\x9f", b"\x98\x80!", ["", "😀", "!", ""]),
        (b"a\xf0\x9f", b"!", ["!", ""]),
        (b"\xe4\xbd\xa0\xe5", b"\xa5\xbd", ["", "好", ""]),
        (b"x", b"\xe4\xbd\xa0\xe5!", ["", "", "你", "", REPLACEMENT + "!", ""]),
        (b"x", b"\xe4\xbd", ["", "", REPLACEMENT * 2]),
    ],
)
def test_byte_fallback_after_a_prompt_or_an_answer_that_ends_inside_a_character(
    prompt, output, expected
):
    assert stream(BYTE_FALLBACK, letters(prompt), letters(output))[0] == expected


def test_the_space_between_prompt_and_answer_is_kept():
    ids = [PIECES.index(piece) + 256 for piece in (" a", " é", "b", "  ")]
    assert stream(BYTE_FALLBACK, ids[:1], ids[1:])[0] == [" é", "b", "  ", ""]
    assert stream(BYTE_FALLBACK, [], ids)[0] == ["a", " é", "b", "  ", ""]


def test_spaces_are_not_cleaned_up():
    """Some tokenizers' `decode` would make "do n't ." into "don't."; text that was given out must stay."""
    tokenizer = pieces_tokenizer(["do", " n", "'", "t", " .", " '", "s"])
    tokenizer.clean_up_tokenization_spaces = True
    pieces, found = stream(tokenizer, [0], [0, 1, 2, 3, 4, 5, 6])
    assert "".join(pieces) == found.text == "do n't . 's"


def test_special_tokens_are_silent(tmp_path):
    tokenizer = pieces_tokenizer(["a", "b", "<end>", "<go>"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>", "<go>"]})
    assert stream(tokenizer, [3, 0], [2, 1, 2, 2, 0])[0] == ["", "b", "", "", "a", ""]


@pytest.mark.parametrize(
    ("stop", "min_tokens", "text", "count"),
    [
        (["cd"], 0, "ab", 4),
        (["cd", "bc"], 0, "a", 3),
        (["abx", "e"], 0, "abcd", 5),
        (["ab"], 2, "", 2),
        (["ab"], 3, "abcde", 5),
        (["bc", "abcd"], 4, "", 4),
        (["bc"], 4, "abcde", 5),
        (["a", "abc"], 2, "", 3),
        (["e"], 5, "abcd", 5),
    ],
)
def test_stops_and_min_tokens_of_single_letters(stop, min_tokens, text, count):
    tokenizer = pieces_tokenizer([*"abcde"])
    pieces, found = stream(tokenizer, [0], [0, 1, 2, 3, 4], stop, min_tokens)
    assert ("".join(pieces), found.text, len(pieces) - 1) == (text, text, count)


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
@pytest.mark.parametrize("stop", [["é!"], ["x", "b😀"], [" ", "😀é"], ["no"], []])
def test_the_engine_streams_what_it_returns(mini, policy, stop):
    """Through preemptions too: a request that is computed again says nothing twice."""
    names = {"a": 0, "b": 1, "é!": 2, " ": 3}
    script = [0, 1, 4, 5, 6, 7, 2, 3, 0]
    texts = [*names, "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    tokenizer = pieces_tokenizer(texts)
    tokenizer.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse()]
    )
    engine = make_engine(mini, block_size=2, num_blocks=9, policy=policy)
    engine.tokenizer = tokenizer
    say(engine, 4, script)
    watched = Watched(engine)
    outputs = watched.generate([P(0, 4)] * 2, greedy(9, stop=stop))
    expected, count = expected_text(
        b"a",
        [b"a", b"b", b"\xf0", b"\x9f", b"\x98", b"\x80", "é!".encode(), b" ", b"a"],
        stop,
        0,
    )
    assert watched.facts("preempt")
    for output in outputs:
        streamed = watched.state["seqs"][output.request_id]["text"]
        assert output.text == "".join(streamed) == expected
        assert len(output.token_ids) == count
        assert output.finish_reason == ("stop" if count < 9 else "length")
