"""Hostile strings: what tokenizer libraries are known to get wrong. An engine and an upgrade must pass all of them."""

from collections.abc import Collection, Iterator
from itertools import islice

BATTERY: tuple[str, ...] = (
    "",
    " ",
    "a",
    "Hello world",
    "The quick brown fox jumps over the lazy dog.",
    " " * 300,
    "\t\t\n \r\n\n\n  \t" * 20,
    "a\u00a0b\u2003c\u3000d\u200be\ufefff\u0085g\u2028h",
    "hello   \n\n  ",
    "   \n hello",
    "a" * 2000,
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466\U0001f468\U0001f3fd\u200d\U0001f4bb\U0001f3f3\ufe0f\u200d\U0001f308",
    "我能吞下玻璃而不伤身体。日本語のテキスト、한국어 문장입니다",
    "שלום עולם مرحبا بالعالم \u200f\u200e",
    "a\0b\0\0c\x01\x7f",
    "".join(map(chr, range(256))),
    "e\u0301a\u0308\u0323 Å\u030a \u1ace\u0301",
    "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "a<|endoftext|>b <|im_start|>user<|im_end|>\n",
    "<s>x</s><unk> <bos><eos><|begin_of_text|><|end_of_text|><|eot_id|>",
    " <|endoftext|> <|endoftext|>\n<|endoftext|",
    "<think>ok</think><tool_call>{}</tool_call>",
    "0123456789" * 10 + " 1,234.567 ²³½ ٣٤٥ Ⅷ",
    "I'll can't WE'RE it'S o'clock ’s 'ſ 'S K'K",
    "İıſK ẞß ǅ ΑΣ ς ﬁ ﷺ",
    "!!!???...---===***///\\\\\\|||``",
    "\u2581\u2581a\u2581b \u2581 c",
    "<0x0A><0x41>Ġtest ĊĠ",
    "\U0010ffff\U000e0001\ufffd\ufffe\uffff",
    "https://a.b/c?d=e&f=%20#g @user #tag ",
    "def f(x):\n\t\treturn  x  +1   # c\r\n\r\n    if  (a&&b){ c++; }\n",
    "QWxhZGRpbjpvcGVuIHNlc2FtZQ==" * 20,
    "本'ſ'se \u0aa1\u0548 > </",
    "\u32ff \ua7f2 \U00010799 \u0898\u0323",
    "ᚠᛇᚻ ᛒᛦᚦ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ⠍⠊ ƒ∮ ∀∃∈ ﬃ ½⁄₃",
)


def hostile_texts(added_tokens: Collection[str]) -> Iterator[str]:
    """The battery, and what a tokenizer's own added tokens give: each alone, within words, and cut short."""
    yield from BATTERY
    for token in islice(added_tokens, _ALONE):
        yield from (token, f" {token} ", f"a{token}b", token[:-1], token.upper())
    yield "".join(f"a{token}b {token}  {token[:-1]}\n{token}" for token in added_tokens)


_ALONE = 32  # of Gemma's 6,415, so many are tried one by one; all of them together are one text more
