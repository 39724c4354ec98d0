import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.compaction.facts import sentences
from foveate.compaction.facts.extract import extract_facts
from foveate.compaction.facts.rules import FactKind, rules
from foveate.compaction.facts.sentences import normalize_letters, split_sentences
from tests.support.strategies.fact_conversations import user_message


def extract_constraints(text: str) -> list[str]:
    return [fact.text for fact in extract_facts([user_message(text)]) if fact.kind is FactKind.CONSTRAINT]


ORDERS = tomllib.loads(Path(sentences.__file__).with_name("facts.toml").read_text(encoding="utf-8"))["orders"]


@pytest.mark.parametrize("phrase", [phrase for phrase in ORDERS if phrase.startswith("*")])
def test_an_order_may_start_with_any_verb(phrase: str) -> None:
    order = phrase.replace("*", "Mach", 1).replace("*", "e").replace("…", "ihm") + " Angst."

    assert extract_constraints(order) == [order]


@pytest.mark.parametrize(
    "sentence",
    [
        "Don’t touch the prod database ever.",
        "Please don’t use sudo here.",
        "ＮＥＶＥＲ push to main",
        "Don't push.",
        "Never commit.",
        "Avoid Redis.",
        "English only.",
        "No emojis in the code.",
        "Write it in Go, no new dependencies please.",
        "Use tabs and no emojis.",
        "Use tabs, not spaces.",
        "Please no mocks.",
        "We cannot use GPL code.",
        "You can't touch main.",
        "The public API cannot be changed.",
        "Under no circumstances delete backups.",
        "Without any new dependency, please.",
        "Stay under 80 columns.",
        "You cannot use any interactive commands (e.g. vim) here.",
        "Bitte keine externen Bibliotheken verwenden.",
        "Lösche nicht die Datenbank.",
        "Ändere die Tests bitte nicht.",
        "Fass die Datenbank nicht an.",
        "Löschen Sie keine Dateien.",
        "Verwende kein Redis.",
        "Keine neuen Abhängigkeiten!",
        "Unter keinen Umständen pushen.",
        "N'utilise pas Redis ici.",
        "N’utilise jamais sudo.",
        "S'il te plaît, ne supprime rien.",
        "Pas de nouvelles dépendances.",
        "Il ne faut pas toucher à main.",
        "No toques la base de datos.",
        "Por favor, no uses Redis.",
        "En ningún caso borres la base.",
        "Non usare Redis qui.",
        "Per favore, non cancellare nulla.",
        "Niente emoji.",
        "Não use Redis aqui.",
        "Не трогай базу.",
        "请勿删除数据库。",
        "别改这个文件。",
        "千万别动数据库。",
        "不能删除这个文件。",
        "このファイルを変更してはいけない。",
        "絶対に触らないでください。",
        "이 파일을 수정하지 마세요.",
        "테스트를 지우면 안 됩니다.",
    ],
)
def test_an_order_is_a_constraint_in_any_spelling_and_language(sentence: str) -> None:
    """Regression: orders with an apostrophe, orders of two words and orders not in English were lost."""
    assert extract_constraints(sentence) == [sentence]


@pytest.mark.parametrize(
    "sentence",
    [
        "No idea why it fails.",
        "No, that is wrong.",
        "no that's not it",
        "No problem, go on.",
        "no, the block should stay as it was",
        "summary=None,  # No summary",
        "No description provided",
        "No tests were run.",
        "There are no emojis here.",
        "I cannot find the file.",
        "It cannot connect to the server.",
        "The build does not work.",
        "I don’t know.",
        "i don’t understand, does it capture the theme?",
        "Must it be so?",
        "Das funktioniert nicht.",
        "Ich weiß nicht, warum.",
        "Es gibt keine Tests.",
        "Keine Ahnung, warum.",
        "Die Tests laufen nicht.",
        "Ich kann die Datei nicht finden.",
        "Warum darf nicht gelöscht werden?",
        "Je ne sais pas.",
        "Ça ne marche pas.",
        "Pas de problème.",
        "Pourquoi ne pas le faire toujours ?",
        "No sé por qué.",
        "No funciona.",
        "¿Es siempre así?",
        "Non so perché.",
        "Non funziona.",
        "Não sei.",
        "O botão não funciona.",
        "Не знаю почему.",
        "这个特别好。",
        "还有别的办法吗？",
        "为什么必须这样？",
        "程序不能运行。",
        "別の方法はありますか？",
        "なぜ必ず失敗しますか？",
        "작동이 안 됩니다.",
        "왜 항상 실패하나요?",
    ],
)
def test_reports_questions_and_doubts_are_not_constraints_in_any_language(sentence: str) -> None:
    assert extract_constraints(sentence) == []


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("You must never\nforce-push to main.", "You must never force-push to main."),
        ("Under no circumstances\ndrop the table users.", "Under no circumstances drop the table users."),
        ("- Lösche niemals die\n  Datenbank von Ana.", "Lösche niemals die Datenbank von Ana."),
        (
            "The tests take long, so please never run them all\nbefore I say so, since others wait.",
            "The tests take long, so please never run them all before I say so, since others wait.",
        ),
    ],
)
def test_a_wrapped_sentence_continues_in_the_next_line(sentence: str, expected: str) -> None:
    assert extract_constraints(sentence) == [expected]


@pytest.mark.parametrize(
    "sentence",
    [
        "Never push to main\nuse tabs",
        "Never push to main, not even when all of the tests are green\n- use tabs",
        "Never push to main, not even when all of the tests are green\nUse tabs",
        "Never push to main, not even when all of the tests are green:\nuse tabs",
        "Never push to main, not even when all of the tests are green\nuse_tabs = True",
    ],
)
def test_separate_lines_are_not_joined(sentence: str) -> None:
    assert extract_constraints(sentence) == [sentence.partition("\n")[0]]


def test_lines_without_a_full_stop_are_all_found() -> None:
    """However many lines continue, each rule is in some fact."""
    lines = [f"and you must never change the column number {number} of it all" for number in range(60)]

    facts = extract_constraints("\n".join(lines))

    assert all(any(f"number {number} of" in fact for fact in facts) for number in range(60))
    assert max(map(len, facts)) <= 400


@given(
    st.lists(st.sampled_from(("never ", "x", " ", "\n", ". ", "’", "的", "\r\n", "the\n", "Ｎ")), max_size=60)
)
def test_sentences_cover_all_words_once_and_normalizing_keeps_positions(pieces: list[str]) -> None:
    text = "".join(pieces)

    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
    assert len(normalize_letters(text)) == len(text)


def test_words_that_mark_a_constraint_are_not_function_words() -> None:
    single = {"never", "must", "only", "always", "avoid", "nur", "nie", "immer", "jamais", "siempre", "必"}

    assert not rules().small_words & (single | rules().negations)


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["I don't ", "no ", "are e nicht ", "ne ", "the\n", "x, no, no ", "must I ? ", "e.g. "]
)
def test_a_long_text_of_order_like_phrases_is_read_quickly(piece: str) -> None:
    """Regression: everything before each "I don't" was searched, which took minutes."""
    assert all(len(fact) <= 400 for fact in extract_constraints(piece * (100_000 // len(piece))))


@pytest.mark.parametrize(
    "report", ["I've never been to Rome.", "She had always wanted a dog.", "My aunt never once wrote to me."]
)
def test_a_report_of_what_somebody_never_did_is_not_a_constraint(report: str) -> None:
    assert extract_constraints(f"{report} Never book a ferry.") == ["Never book a ferry."]
