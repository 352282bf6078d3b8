#!/usr/bin/env python3
"""Writes tests/golden/tokenizers: small tokenizer.json files of every kind, and what the
`tokenizers` package (version in versions.json) makes of a list of texts with each.

    python tools/golden/make_tokenizers.py tests/golden/tokenizers

texts.json        the texts, a list of strings
NAME.json         a tokenizer.json
NAME.want.json    for each text: "ids" with special tokens, "plain" the hash of the ids without
                  them, "decoded" and "skipped" the hashes of what "ids" decode to with and without
                  special tokens
NAME.model        a SentencePiece model, with NAME.want.json: "ids" as its own library gives them
NAME.config.json  a tokenizer_config.json, where transformers made the ids
probes.json       a vocabulary of bytes; normalizers and pre-tokenizers, each with the hashes of
                  the ids that a tokenizer gives with them whose tokens are bytes and which marks
                  the last byte of a piece
decoders.json     decoders, a vocabulary, lists of ids and the text that each decoder makes of them

A hash is 64-bit FNV-1a, in hexadecimal: of text, or of ids written with commas between.
"""

import io
import json
import os
import random
import sys

import sentencepiece
import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = sys.argv[1]

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\t\n \r\n  \n\n",
    "Hello world",
    " Hello  world ",
    "The quick brown fox jumps over the lazy dog.",
    "It's we'll I'M they'Re don't O'Brien 'tis rock'n'roll",
    "camelCase HTTPServer XMLHttpRequest iPhone McDonald",
    "0 1 12 123 1234 12345 3.14159 1,000,000 0x1F 1e-9 ½ ² Ⅷ ٣٤٥ १२३",
    "def f(x):\n    return x**2  # square\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }\r\n\r\n// done",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<mask>b <mask> c  <mask>  d<mask>",
    "Grüße aus Köln, naïve café, Ångström, señor, façade, Œuvre, ﬁne ﬂow",
    "e\u0301 vs \u00e9, A\u030a vs \u00c5, \u1e9b\u0323, o\u0308\u0304",
    "Привет, мир! Съешь ещё этих мягких булок",
    "Ελληνικά: καλημέρα κόσμε, ΣΊΣΥΦΟΣ",
    "שלום עולם, מה שלומך?",
    "مرحبا بالعالم، كيف حالك؟ السَّلَامُ",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "বাংলা লেখা আমার সোনার",
    "தமிழ் எழுத்து வணக்கம்",
    "తెలుగు ಕನ್ನಡ മലയാളം ગુજરાતી ਪੰਜਾਬੀ සිංහල",
    "สวัสดีชาวโลก ภาษาไทย",
    "ລາວ ខ្មែរ မြန်မာ བོད་སྐད",
    "你好，世界！今天天气很好。",
    "吾輩は猫である。名前はまだ無い。カタカナ ﾊﾝｶｸ",
    "안녕하세요 세계 한국어 텍스트",
    "𠀀𠮷 \U0002f800 豈更車",
    "Հայերեն ქართული አማርኛ ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ",
    "Tiếng Việt: Xin chào thế giới",
    "😀 😃👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ ✈︎ 🏳️‍🌈",
    "™ © ® € £ ¥ § ¶ † ‡ • … ‰ ′ ″ ← → ∀ ∃ ∑ ∫ ≠ ≤ ⟨⟩",
    "ａｂｃＡＢＣ１２３ ①②③ Ⓐⓑ ㍿ ㎏ ㌔",
    "zero\u200bwidth\u200cjoin\u200der \ufeffbom soft\u00adhyphen \u2060wj",
    "nbsp\u00a0thin\u2009ideo\u3000line\u2028para\u2029nel\u0085ogham\u1680mvs\u180eend",
    "\x00\x01\x02 control \x1b[0m \x7f\x80\x9f",
    "\ufffd replacement \ufffe \U0010ffff private \ue000",
    "İstanbul ISPARTA ıyi ẞ ß ﬀ Ǆ ǆ ǅ Σς",
    "mixed漢字kanaかなLatin한글and123数字４５６",
    "!!! ??? ... --- *** ### $$$ %%% ^^^ &&& (((x))) [[y]] {{z}} <<>> "
    "~~ `` @@ ++ == || \\\\ // ''\"\"",
    "a,b;c:d.e!f?g-h_i(j)k[l]m{n}o",
    "______ __init__ snake_case_name a_b",
    "https://example.org/path?q=1&r=2#frag user@example.org C:\\dir\\file.txt",
    "    four\n        eight\n\t\ttabs\n  \n   trailing   ",
    " " * 40 + "x" + " " * 17 + "\n" + "\n" * 9 + "y",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "abababababababababababababababababababababababababababab cdcdcdcdcdcd",
    "ha" * 60,
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "▁metaspace ▁▁ already▁here ▁",
    "##sub ##word </w> Ġ Ċ <0x41> <0xE2>",
    "<s>text</s> <unk> [UNK] [CLS] [SEP] [MASK] <pad>",
    "A <new> token<new>here, <new>s and re<new>",
    "word1 WORD1 wOrD1 éclair ÉCLAIR",
    "She said: “Quoted—text” ‘single’ «guillemets» „low“ 「鉤」",
    "1st 2nd 3rd 4th; 10:30am, 2024-02-29T12:34:56Z +49 (0)30 123456",
    'print(f"{x!r:>{width}}")\nSELECT * FROM t WHERE a=\'b\' -- c\n<div class="x">&amp;</div>',
]

CORPUS = (
    TEXTS * 3
    + [
        "A small engine reads the weights of a model and turns text into numbers "
        "and numbers into text.",
        "The numbers are the ids of tokens, and every token is a part of a word, "
        "a word or a space.",
        "Words that stand often in a text become one token, and words that are rare "
        "become several.",
        "What is read must be written again exactly as it was, with every space and every line.",
        "import os\nimport sys\n\n\ndef main(argv):\n    for name in argv[1:]:\n"
        "        print(name)\n    return 0\n",
        "#include <vector>\nint main() {\n  std::vector<int> v{1, 2, 3};\n  return v.size();\n}\n",
        "In the year 2024 there were 366 days, 52 weeks and 8784 hours; 1000000 is a million.",
        "Die Katze sitzt auf der Matte und schläft. Le chat dort sur le tapis. El gato duerme.",
        "Кошка спит на ковре. Η γάτα κοιμάται. "
        "猫在垫子上睡觉。猫はマットの上で寝ています。고양이가 잔다.",
    ]
    * 4
)

BYTES = list(pre_tokenizers.ByteLevel.alphabet())
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(
    tokenizer, vocab=500, alphabet=(), special=(), kind=trainers.BpeTrainer, corpus=None, **options
):
    trainer = kind(
        vocab_size=vocab,
        initial_alphabet=list(alphabet),
        special_tokens=list(special),
        show_progress=False,
        **options,
    )
    tokenizer.train_from_iterator(corpus or CORPUS, trainer)
    return tokenizer


def byte_level(
    split=None, normalizer=None, special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), **model
):
    t = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        t.normalizer = normalizer
    if split is None:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        steps = (
            split if isinstance(split, list) else [pre_tokenizers.Split(Regex(split), "isolated")]
        )
        t.pre_tokenizer = pre_tokenizers.Sequence(
            steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    t.decoder = decoders.ByteLevel()
    return train(t, alphabet=BYTES, special=special)


def probe(pre=None, normalizer=None):
    """A model that shows where every piece ends: each byte is a token, the last one another."""
    vocab = {c: i for i, c in enumerate(BYTES)}
    vocab.update({c + "</w>": 256 + i for i, c in enumerate(BYTES)})
    t = Tokenizer(models.BPE(vocab=vocab, merges=[], end_of_word_suffix="</w>"))
    steps = [] if pre is None else (pre if isinstance(pre, list) else [pre])
    t.pre_tokenizer = pre_tokenizers.Sequence(
        steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if normalizer is not None:
        t.normalizer = normalizer
    t.decoder = decoders.BPEDecoder()
    return t


def template(t, single, *tokens):
    t.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(x, t.token_to_id(x)) for x in tokens]
    )
    return t


BYTE_TOKENS = [f"<0x{b:02X}>" for b in range(256)]


def spm_bpe(normalizer, pre, decoder, **model):
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>", **model))
    if normalizer is not None:
        t.normalizer = normalizer
    if pre is not None:
        t.pre_tokenizer = pre
    special = ["<unk>", "<s>", "</s>"]
    train(t, vocab=800, special=special + BYTE_TOKENS, limit_alphabet=120)
    # Byte tokens are plain entries of the vocabulary, not added tokens.
    data = json.loads(t.to_str())
    data["added_tokens"] = [a for a in data["added_tokens"] if a["content"] in special]
    t = Tokenizer.from_str(json.dumps(data))
    t.decoder = decoders.Sequence(decoder)
    return template(t, "<s> $A", "<s>")


SPM_DECODER = [
    decoders.Replace("▁", " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Strip(" ", 1, 0),
]


def unigram(pre=None, normalizer=None, byte_fallback=False, special=("<unk>", "<s>", "</s>")):
    t = Tokenizer(models.Unigram())
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = pre or pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    train(
        t,
        vocab=400,
        special=special,
        kind=trainers.UnigramTrainer,
        unk_token="<unk>",
        max_piece_length=8,
        corpus=[x for x in CORPUS if sum(c < "\u0250" for c in x) > 0.9 * len(x)],
    )
    if byte_fallback:
        data = json.loads(t.to_str())
        data["model"]["vocab"] += [[b, -12.0] for b in BYTE_TOKENS]
        data["model"]["byte_fallback"] = True
        t = Tokenizer.from_str(json.dumps(data))
        t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return t


def wordpiece(lowercase, strip_accents=None, **options):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", **options))
    t.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    train(
        t,
        vocab=500,
        special=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        kind=trainers.WordPieceTrainer,
        limit_alphabet=150,
    )
    return template(t, "[CLS] $A [SEP]", "[CLS]", "[SEP]")


def spm_model(kind, **options):
    """A SentencePiece model, with a few rewriting rules of its own."""
    rules = {
        "ａ": "a",
        "Ａ": "A",
        "①": "1",
        "㍿": "株式会社",
        "ﬁ": "fi",
        "e\u0301": "é",
        "\u3000": " ",
        "\u00a0": " ",
        "\u200b": " ",
        "\u00ad": "",
        "\t": " ",
        "…": "...",
        "½": "1/2",
        "\u304b\u3099": "\u304c",
    }
    path = os.path.join(OUT, "rules.tsv")
    with open(path, "w", encoding="utf8") as f:
        for source, target in rules.items():
            f.write(
                " ".join(f"{ord(c):X}" for c in source)
                + "\t"
                + " ".join(f"{ord(c):X}" for c in target)
                + "\n"
            )
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            [x for x in CORPUS if x.isascii() and x.isprintable() and x.strip()]
        ),
        model_writer=model,
        normalization_rule_tsv=path,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        character_coverage=1.0,
        num_threads=1,
        **options,
    )
    os.remove(path)
    from sentencepiece import sentencepiece_model_pb2 as proto

    m = proto.ModelProto()
    m.ParseFromString(model.getvalue())
    m.normalizer_spec.ClearField("normalization_rule_tsv")  # a path of this machine
    return m.SerializeToString(deterministic=True)


def charsmap():
    from sentencepiece import sentencepiece_model_pb2 as proto

    m = proto.ModelProto()
    m.ParseFromString(spm_model("unigram", vocab_size=200))
    return m.normalizer_spec.precompiled_charsmap


def spm_kinds():
    yield "model_unigram", spm_model("unigram", vocab_size=250)
    yield (
        "model_unigram_bytes",
        spm_model("unigram", vocab_size=500, byte_fallback=True, remove_extra_whitespaces=False),
    )
    yield "model_bpe", spm_model("bpe", vocab_size=300)
    yield (
        "model_bpe_bytes",
        spm_model("bpe", vocab_size=600, byte_fallback=True, add_dummy_prefix=False),
    )


def added_tokens(normalizer):
    t = byte_level(normalizer=normalizer)
    names = {
        "<mask>": 0,
        "Hello": 1,
        "<new>": 2,
        "world": 3,
        "word1": 4,
        "a": 5,
        "éclair": 6,
        "\n": 7,
        "  ": 8,
    }
    for name, i in names.items():
        t.add_tokens(
            [
                AddedToken(
                    name,
                    lstrip=i % 2 == 0,
                    rstrip=i % 3 == 0,
                    single_word=i % 4 == 1 or i == 5,
                    normalized=i % 3 != 1,
                    special=i == 2,
                )
            ]
        )
    return t


def all_kinds():
    P, N = pre_tokenizers, normalizers
    yield "bpe_gpt2", byte_level()
    yield (
        "bpe_llama3",
        template(byte_level(LLAMA3, ignore_merges=True), "<|endoftext|> $A", "<|endoftext|>"),
    )
    yield "bpe_qwen2", byte_level(QWEN2, N.NFC())
    yield "bpe_gpt4o", byte_level(GPT4O)
    yield "bpe_kimi", byte_level(KIMI)
    yield "bpe_smollm", byte_level([P.Digits(True), P.Split(Regex(GPT2), "isolated")])
    yield (
        "bpe_deepseek",
        byte_level(
            [
                P.Split(Regex(r"\p{N}{1,3}"), "isolated"),
                P.Split(Regex(r"[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                P.Split(
                    Regex(
                        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"
                        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
                        r"\s*[\r\n]+|\s+(?!\S)|\s+"
                    ),
                    "isolated",
                ),
            ]
        ),
    )
    t = byte_level(special=("<s>", "</s>", "<mask>"))
    t.pre_tokenizer = P.ByteLevel(add_prefix_space=True)
    t.post_processor = processors.RobertaProcessing(
        ("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>"))
    )
    yield "bpe_roberta", t
    t = Tokenizer(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", continuing_subword_prefix="@@")
    )
    t.normalizer = N.Sequence([N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()])
    t.pre_tokenizer = P.Split(
        Regex(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True
    )
    t.decoder = decoders.BPEDecoder()
    yield (
        "bpe_clip",
        train(
            t,
            special=["<unk>"],
            end_of_word_suffix="</w>",
            continuing_subword_prefix="@@",
            limit_alphabet=100,
        ),
    )
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    t.pre_tokenizer = P.Whitespace()
    yield "bpe_unk", train(t, special=["<unk>"], limit_alphabet=60, vocab=300)
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.pre_tokenizer = P.WhitespaceSplit()
    yield "bpe_fuse_unk", train(t, special=["<unk>"], limit_alphabet=60, vocab=300)
    t = byte_level(normalizer=N.ByteLevel(), split=[])
    t.pre_tokenizer = P.Split(Regex(r"Ġ?[^Ġ]+"), "isolated")
    yield "bpe_normalizer_byte_level", t

    yield (
        "spm_legacy",
        spm_bpe(N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None, SPM_DECODER),
    )
    yield "spm_first", spm_bpe(None, P.Metaspace(prepend_scheme="first", split=False), SPM_DECODER)
    yield "spm_strip_first", spm_bpe(N.Strip(), P.Metaspace(prepend_scheme="first"), SPM_DECODER)
    yield (
        "spm_gemma",
        spm_bpe(N.Replace(" ", "▁"), P.Split(" ", "merged_with_previous"), SPM_DECODER[:3]),
    )
    yield "unigram_always", template(unigram(), "$A </s>", "</s>")
    yield "unigram_never", unigram(P.Metaspace(prepend_scheme="never"), N.NFKC())
    yield (
        "unigram_first",
        unigram(P.Sequence([P.WhitespaceSplit(), P.Metaspace(prepend_scheme="first", split=True)])),
    )
    yield "unigram_bytes", unigram(byte_fallback=True)
    yield (
        "unigram_charsmap",
        unigram(normalizer=N.Sequence([N.Precompiled(charsmap()), N.Replace(Regex(" {2,}"), " ")])),
    )
    yield "wordpiece_uncased", wordpiece(True)
    yield "wordpiece_cased", wordpiece(False, strip_accents=False, max_input_chars_per_word=12)
    yield "wordpiece_accents", wordpiece(False, strip_accents=True)
    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.pre_tokenizer = P.Sequence([P.WhitespaceSplit(), P.Punctuation("contiguous")])
    yield "wordlevel", train(t, vocab=300, special=["<unk>"], kind=trainers.WordLevelTrainer)

    yield "added_plain", added_tokens(None)
    yield "added_lowercase", added_tokens(N.Lowercase())
    yield "added_prepend", added_tokens(N.Sequence([N.Prepend("_"), N.NFC()]))


def probes():
    P, N = pre_tokenizers, normalizers
    for name, n in {
        "nfc": N.NFC(),
        "nfd": N.NFD(),
        "nfkc": N.NFKC(),
        "nfkd": N.NFKD(),
        "lowercase": N.Lowercase(),
        "strip": N.Strip(),
        "strip_left": N.Strip(right=False),
        "strip_right": N.Strip(left=False),
        "accents": N.Sequence([N.NFD(), N.StripAccents()]),
        "nmt": N.Nmt(),
        "bert": N.BertNormalizer(),
        "bert_plain": N.BertNormalizer(
            clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False
        ),
        "replace_string": N.Replace("a", "<A>"),
        "replace_regex": N.Replace(Regex(r"\p{N}+"), "#"),
        "prepend": N.Prepend("▁"),
        "precompiled": N.Precompiled(charsmap()),
    }.items():
        yield "normalizer_" + name, probe(normalizer=n)

    for behavior in [
        "removed",
        "isolated",
        "merged_with_previous",
        "merged_with_next",
        "contiguous",
    ]:
        yield "split_" + behavior, probe(P.Split(Regex(r"\s|[,.;]"), behavior))
        yield (
            "split_inverted_" + behavior,
            probe(P.Split(Regex(r"[\p{L}]+"), behavior, invert=True)),
        )
        yield "split_string_" + behavior, probe(P.Split("ab", behavior))
        yield "punctuation_" + behavior, probe(P.Punctuation(behavior))
    for name, p in {
        "whitespace": P.Whitespace(),
        "whitespace_split": P.WhitespaceSplit(),
        "bert": P.BertPreTokenizer(),
        "digits": P.Digits(False),
        "digits_one": P.Digits(True),
        "char": P.CharDelimiterSplit(" "),
        "fixed": P.FixedLength(7),
        "metaspace_always": P.Metaspace(),
        "byte_level": P.ByteLevel(),
        "metaspace_first": [P.WhitespaceSplit(), P.Metaspace(prepend_scheme="first")],
        "metaspace_never": P.Metaspace(prepend_scheme="never", replacement="_"),
        "metaspace_whole": P.Metaspace(split=False),
    }.items():
        yield "pre_" + name, probe(p)
    for i, pattern in enumerate(REGEX):
        yield f"regex_{i:02d}", probe(P.Split(Regex(pattern), "isolated"))


# Where Oniguruma and PCRE2 differ, and what tokenizer files use.
REGEX = [
    GPT2,
    LLAMA3,
    GPT4O,
    KIMI,
    r"\w+",
    r"\W+",
    r"\s",
    r"\S+",
    r"\d+",
    r"\D+",
    r"\h+",
    r"\b",
    r"\bw",
    r"o\B",
    r"[\w&&[^\d]]+",
    r"[^\w\s]+",
    r"[\s\S]",
    r"[^\S\n]+",
    r"[a-c[x-z]]+",
    r"[^a-y[0-9]]",
    r"[[:alpha:]]+",
    r"[[:punct:]]",
    r"[^[:space:]]+",
    r"[[:upper:][:digit:]]+",
    r"(?i:world|ist)",
    r"o(?i)r|w",
    r"\p{N}{1,2}+",
    r"\p{L}?+\p{L}",
    r"a{,3}b",
    r"x{2}?",
    r" {2,}?",
    r"^\w",
    r"\w$",
    r"\A.",
    r".\z",
    r"(?m:.+)",
    r".+",
    r"(?<=\d)(?=(?:\d{3})+(?!\d))",
    r"(?<!\w)[a-z]",
    r"\u4e00|[\u3040-\u30ff]+",
    r"\x{1F600}|[\x{1F1E6}-\x{1F1FF}]{2}",
    r"\p{Han}+",
    r"\p{Letter}+|\p{Decimal_Number}",
    r"\p{^L}+",
    r"\P{L}+",
    r"[\p{P}\p{S}]+",
    r"[^\p{Lu}\p{Ll}]",
    r"(a|b)+?c|(?:ab)++",
    r"([a-z])\1",
    r"(?>a+)b?",
    r"\p{Greek}+|\p{Cyrillic}+|\p{Arabic}",
    r"\R",
    r"[+\-*/^]",
    r"[]a]",
    r"{|}|\{2\}",
    r"\p{Alpha}+",
    r"\p{Punct}",
    r"(?:'[sS]|'[tT])|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+",
    r" ?[^(\s|.,!?…。，、।۔،)]+",
    r"(?=(\d{3})+(?!\d))",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"\t|\n|\r|\v|\f|\e|\0",
]


def decoder_kinds():
    words = [
        "a",
        "b",
        "##c",
        "▁d",
        "▁▁e",
        "▁",
        "<0xE2>",
        "<0x82>",
        "<0xAC>",
        "<0xFF>",
        "<0x41>",
        " x",
        "x ",
        " ",
        "don",
        "'t",
        "n't",
        ".",
        "!",
        "do not",
        "|",
        "<pad>",
        "h",
        "i</w>",
        "j</w>k",
        "<s>",
        "Ġl",
        "é",
        "Ã©",
        "日",
    ]
    vocab = {w: i for i, w in enumerate(words)}
    rng = random.Random(7)
    lists = [
        [],
        [0],
        [5],
        [6],
        [6, 7, 8],
        [6, 7],
        [9],
        [9, 9],
        [5, 5, 0],
        [25, 3, 25],
        [21, 21, 22, 22, 21, 22],
        [3, 4, 3],
        [13, 13, 0, 13],
        [23, 24, 23],
        [0, 16, 17, 18],
        [27, 28, 29],
        [8, 6, 7, 8, 10],
    ]
    lists += [[rng.randrange(len(words)) for _ in range(rng.randrange(1, 12))] for _ in range(60)]

    # Runs of byte tokens that are not UTF-8 as a whole are nibble's own (decoder.h): left out here.
    def well_formed(ids):
        run = b""
        for i in ids + [0]:
            if 6 <= i <= 10:
                run += bytes([int(words[i][3:5], 16)])
            elif run:
                bad = sum(1 for b in run if b in (0xE2, 0x82, 0xAC, 0xFF))
                good = run.count(b"\xe2\x82\xac") * 3
                if bad != good and not (good == 0 and bad == len(run)):
                    return False
                run = b""
        return True

    lists = [x for x in lists if well_formed(x)]
    D = decoders
    for name, d in {
        "none": None,
        "byte_level": D.ByteLevel(),
        "wordpiece": D.WordPiece(),
        "wordpiece_plain": D.WordPiece(cleanup=False),
        "metaspace": D.Metaspace(),
        "metaspace_never": D.Metaspace(prepend_scheme="never"),
        "bpe": D.BPEDecoder(),
        "ctc": D.CTC(),
        "ctc_plain": D.CTC(cleanup=False),
        "fuse": D.Fuse(),
        "byte_fallback": D.ByteFallback(),
        "replace_regex": D.Replace(Regex(r"[a-c]"), "_"),
        "strip": D.Sequence([D.Fuse(), D.Strip(" ", 1, 1)]),
        "strip_tokens": D.Strip(" ", 1, 0),
        "llama": D.Sequence(SPM_DECODER),
        "fused_replace": D.Sequence(
            [D.ByteFallback(), D.Fuse(), D.Replace("▁", " "), D.Strip(" ", 1, 0)]
        ),
        "fused_metaspace": D.Sequence([D.ByteFallback(), D.Metaspace()]),
    }.items():
        t = Tokenizer(models.WordLevel(vocab, unk_token="a"))
        t.add_special_tokens(["<s>"])
        if d is not None:
            t.decoder = d
        yield "decoder_" + name, t, lists


def config_kinds():
    """What transformers' generic tokenizer makes of tokenizer_config.json."""
    base = byte_level(special=("<s>", "</s>", "<unk>"))

    def entry(c, **k):
        return {
            "__type": "AddedToken",
            "content": c,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
            **k,
        }

    yield "config_bos", base, {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
    yield (
        "config_bos_eos",
        base,
        {
            "add_bos_token": True,
            "add_eos_token": True,
            "bos_token": entry("<s>"),
            "eos_token": "</s>",
        },
    )
    yield (
        "config_none",
        template(base, "<s> $A </s>", "<s>", "</s>"),
        {"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>"},
    )
    yield (
        "config_kept",
        template(base, "<s> $A </s>", "<s>", "</s>"),
        {"bos_token": "<s>", "eos_token": "</s>"},
    )
    yield (
        "config_more",
        base,
        {
            "bos_token": "<s>",
            "pad_token": "<pad>",
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "added_tokens_decoder": {
                "0": entry("<s>", rstrip=True),
                "1": entry("</s>"),
                "2": entry("<unk>"),
                "500": entry("<new>", lstrip=True),
            },
        },
    )


def fnv(data):
    if isinstance(data, list):
        data = ",".join(map(str, data))
    h = 0xCBF29CE484222325
    for b in data.encode("utf8"):
        h = (h ^ b) * 0x100000001B3 % 2**64
    return f"{h:x}"


def decoded_or_none(t, ids):
    try:
        return t.decode(ids, skip_special_tokens=False)
    except BaseException as e:  # Strip panics on a text shorter than what it may cut
        if "PanicException" not in type(e).__name__:
            raise
        return None


def write(name, value):
    with open(os.path.join(OUT, name), "w", encoding="utf8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def results(encode, decode):
    ids = [encode(t, True) for t in TEXTS]
    return {
        "ids": ids,
        "plain": [fnv(encode(t, False)) for t in TEXTS],
        "decoded": [fnv(decode(i, False)) for i in ids],
        "skipped": [fnv(decode(i, True)) for i in ids],
    }


def main():
    os.makedirs(OUT, exist_ok=True)
    write(
        "versions.json",
        {
            "tokenizers": tokenizers.__version__,
            "transformers": transformers.__version__,
            "sentencepiece": sentencepiece.__version__,
        },
    )
    write("texts.json", TEXTS)
    for name, t in all_kinds():
        write(name + ".json", json.loads(t.to_str()))
        write(
            name + ".want.json",
            results(
                lambda s, special: t.encode(s, add_special_tokens=special).ids,
                lambda ids, skip: t.decode(ids, skip_special_tokens=skip),
            ),
        )
    found = []
    for name, t in probes():
        data = json.loads(t.to_str())
        found.append(
            {
                "name": name,
                "normalizer": data["normalizer"],
                "pre_tokenizer": data["pre_tokenizer"],
                "want": [fnv(t.encode(x).ids) for x in TEXTS],
            }
        )
    write("probes.json", {"vocab": data["model"]["vocab"], "probes": found})
    found = []
    for name, t, lists in decoder_kinds():
        vocab = json.loads(t.to_str())["model"]["vocab"]
        found.append(
            {
                "name": name,
                "decoder": json.loads(t.to_str())["decoder"],
                "want": [decoded_or_none(t, x) for x in lists],
            }
        )
    write("decoders.json", {"vocab": vocab, "lists": lists, "decoders": found})
    for name, model in spm_kinds():
        with open(os.path.join(OUT, name + ".model"), "wb") as f:
            f.write(model)
        spm = sentencepiece.SentencePieceProcessor(model_proto=model)
        write(name + ".want.json", {"ids": [spm.encode(x) for x in TEXTS]})
    for name, t, config in config_kinds():
        write(name + ".json", json.loads(t.to_str()))
        write(name + ".config.json", config)
        path = os.path.join(OUT, "load")
        os.makedirs(path, exist_ok=True)
        t.save(os.path.join(path, "tokenizer.json"))
        with open(os.path.join(path, "tokenizer_config.json"), "w") as f:
            json.dump({**config, "tokenizer_class": "TokenizersBackend"}, f)
        fast = transformers.PreTrainedTokenizerFast.from_pretrained(path)
        write(
            name + ".want.json",
            results(
                lambda s, special: fast.encode(s, add_special_tokens=special),
                lambda ids, skip: fast.decode(ids, skip_special_tokens=skip),
            ),
        )
        for f in os.listdir(path):
            os.remove(os.path.join(path, f))
        os.rmdir(path)


main()
