"""Random texts with many characters at which tokenizers split."""

from hypothesis import strategies as st

_STRETCHES = (
    *"abcxyzABCZ019_'’ \t\n\r/\\.,;:!?()[]{}\"<>=+-*|&%$#@^~`",
    *"éßñÅſKİıǅʰªº²½Ⅷ٣०๓①㊀〇一二漢字かなカナー・ｱ한글ㅎ。、，！？；：（）「」『』《》…—“”゛ﾞ〆々©€",
    *(
        "'s",
        "'LL",
        "'ve",
        "'ſ",
        "n't",
        "I'm",
        "12345",
        "\n\n\n",
        "   ",
        "\r\n\r\n",
        "\t\t",
        "///",
        " //",
        "\n/",
    ),
    *(
        "e\u0301",
        "\u0301",
        "\u0338",
        "\u200d",
        "\ufe0f",
        "\u00a0",
        "\u2003",
        "\u3000",
        "\u2028",
        "\x85",
        "\x0b",
    ),
    *("👍🏽", "👨‍👩‍👧", "🇩🇪", "नमस्ते", "ि", "مرحبا", "َ", "ไทย", "็", "\x00", "\ufeff", "\u0378", "\U0001e030"),
    *("word", " word", "Word", "snake_case", "camelCase", "<b>", "</div>", "> </", "<|", "|>", "▁", "=>", "--"),
)

characters = st.characters(exclude_categories=["Cs"])
texts = st.lists(
    st.one_of(st.sampled_from(_STRETCHES), st.sampled_from(_STRETCHES), characters), max_size=60
).map("".join)
# Surrogates are rare among all characters, so they have their own strategy.
any_texts = st.one_of(texts, st.text(), st.text(st.sampled_from("ab \n漢😀\ud83d\ude00\udfff")))
