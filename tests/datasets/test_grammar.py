"""Invariants of every generated sentence and of the splits, and the reader of word tables.

Correct French is specified here again, in tables that are independent of those of the grammar.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from glassformer.core.errors import UserError
from glassformer.datasets import tables
from glassformer.datasets.grammar import english, french, translation_pairs
from glassformer.datasets.grammar.clauses import Clauses
from glassformer.datasets.grammar.lexicon import ADJECTIVES, NOUNS, VERBS
from glassformer.datasets.grammar.sentences import (
    CONSTRUCTIONS,
    SPLITS,
    belongs,
    combinations,
    draw_sentence,
    sentences,
    split_of,
)

Pairs = list[tuple[str, str]]


def join_names(words: str, separator: str | None = None) -> list[str]:
    return words.split(separator)


GENDERS = dict.fromkeys(
    join_names("""
    père grand-père frère fils oncle ami voisin homme garçon enfant roi prince médecin professeur étudiant
    soldat touriste artiste voleur héros chien chat cheval oiseau lapin loup hibou ours âne œuf gâteau
    oignon biscuit pain fromage riz miel chocolat lait thé café vin argent chapeau manteau gant couteau
    miroir parapluie jouet ordinateur bijou cadeau sac livre journal poème film exercice jeu tableau lit
    fauteuil bureau vélo bateau camion train avion bus arbre jardin village hôpital hôtel château magasin
    musée restaurant marché parc pont"""),
    "m",
) | dict.fromkeys(
    join_names("""
    mère grand-mère sœur fille tante femme reine princesse infirmière actrice serveuse vache souris oie
    araignée poule pomme orange tomate fraise poire viande soupe eau bière chemise robe chaussure écharpe
    jupe clé lampe horloge balle assiette tasse hache boîte bouteille valise lettre histoire chanson leçon
    question image table chaise armoire porte fenêtre voiture fleur rose maison cuisine école ferme église
    gare bibliothèque forêt rivière plage ville rue île"""),
    "f",
)
"""Gender of every noun."""

# Plurals that do not simply add an s.
PLURALS = dict(
    pair.split("/")
    for pair in join_names("""
    fils/fils héros/héros souris/souris ours/ours bus/bus riz/riz cheval/chevaux journal/journaux
    hôpital/hôpitaux oiseau/oiseaux gâteau/gâteaux chapeau/chapeaux manteau/manteaux couteau/couteaux
    cadeau/cadeaux tableau/tableaux bureau/bureaux bateau/bateaux château/châteaux eau/eaux hibou/hiboux
    bijou/bijoux jeu/jeux grand-père/grands-pères grand-mère/grands-mères""")
)
PLURAL_GENDERS = {PLURALS.get(word, word + "s"): gender for word, gender in GENDERS.items()}

# Masculine and feminine of every adjective.
FEMININES = dict(
    pair.split("/")
    for pair in join_names("""
    vieux/vieille beau/belle nouveau/nouvelle bon/bonne mauvais/mauvaise petit/petite grand/grande joli/jolie
    long/longue jeune/jeune rouge/rouge bleu/bleue vert/verte blanc/blanche noir/noire gris/grise
    heureux/heureuse triste/triste fatigué/fatiguée malade/malade riche/riche pauvre/pauvre
    intelligent/intelligente gentil/gentille poli/polie drôle/drôle célèbre/célèbre courageux/courageuse
    jaloux/jalouse sérieux/sérieuse fier/fière paresseux/paresseuse timide/timide fort/forte honnête/honnête
    actif/active prêt/prête loyal/loyale intéressant/intéressante ennuyeux/ennuyeuse difficile/difficile
    facile/facile cher/chère lourd/lourde vide/vide sale/sale propre/propre cassé/cassée
    dangereux/dangereuse moderne/moderne délicieux/délicieuse chaud/chaude froid/froide frais/fraîche
    sucré/sucrée rond/ronde utile/utile original/originale secret/secrète français/française
    italien/italienne espagnol/espagnole""")
)
# Masculine plurals that do not simply add an s.
ADJECTIVE_PLURALS = dict(
    pair.split("/")
    for pair in join_names("""
    vieux/vieux beau/beaux nouveau/nouveaux mauvais/mauvais gris/gris heureux/heureux courageux/courageux
    jaloux/jaloux sérieux/sérieux paresseux/paresseux loyal/loyaux ennuyeux/ennuyeux dangereux/dangereux
    délicieux/délicieux frais/frais original/originaux français/français""")
)
ADJECTIVE_FORMS: dict[str, set[tuple[str, bool]]] = {}
"""Possible gender and number (True: plural) of each form."""
for _masculine, _feminine in FEMININES.items():
    _plural = ADJECTIVE_PLURALS.get(_masculine, _masculine + "s")
    for _form, _is in (
        (_masculine, ("m", False)),
        (_feminine, ("f", False)),
        (_plural, ("m", True)),
        (_feminine + "s", ("f", True)),
    ):
        ADJECTIVE_FORMS.setdefault(_form, set()).add(_is)

PARTICIPLES = join_names("""
    vu acheté vendu mangé bu trouvé perdu cherché regardé écouté attendu ouvert fermé cassé lavé nettoyé
    dessiné peint écrit pris choisi construit porté compris entendu oublié aidé suivi invité appelé visité
    caché gardé jeté fini commencé reçu rencontré remercié réparé conduit attrapé admiré""")
"""Masculine participles of the verbs with a direct object."""

# Third person, past and -ing of verbs that do not simply add s, ed and ing.
ENGLISH_FORMS = {
    forms.split()[0]: forms.split()[1:]
    for forms in join_names(
        """
    be is was being|begin begins began beginning|break breaks broke breaking|bring brings brought bringing|
    build builds built building|buy buys bought buying|carry carries carried carrying|
    catch catches caught catching|choose chooses chose choosing|come comes came coming|
    cry cries cried crying|draw draws drew drawing|drink drinks drank drinking|drive drives drove driving|
    eat eats ate eating|fall falls fell falling|find finds found finding|finish finishes finished finishing|
    forget forgets forgot forgetting|get gets got getting|give gives gave giving|go goes went going|
    have has had having|hear hears heard hearing|hide hides hid hiding|hurry hurries hurried hurrying|
    keep keeps kept keeping|know knows knew knowing|leave leaves left leaving|lend lends lent lending|
    lose loses lost losing|meet meets met meeting|prefer prefers preferred preferring|
    run runs ran running|see sees saw seeing|sell sells sold selling|send sends sent sending|
    sing sings sang singing|sleep sleeps slept sleeping|stop stops stopped stopping|
    swim swims swam swimming|take takes took taking|tell tells told telling|throw throws threw throwing|
    understand understands understood understanding|wake wakes woke waking|wash washes washed washing|
    wear wears wore wearing|write writes wrote writing""",
        "|",
    )
}


@pytest.fixture(scope="module")
def pairs() -> dict[str, Pairs]:
    return {"train": translation_pairs(20_000, 1, "train")} | {
        split: translation_pairs(1_000, 1, split) for split in ("validation", "test")
    }


@pytest.fixture(scope="module")
def french_sentences(pairs: dict[str, Pairs]) -> list[str]:
    return [target for split in SPLITS for _, target in pairs[split]]


def violations(pattern: str, texts: list[str]) -> list[str]:
    return [text for text in texts if re.search(pattern, text)][:10]


# ---------------------------------------------------------------- words


def test_every_noun_has_the_gender_and_plural_of_the_table() -> None:
    for noun in NOUNS.values():
        head, *rest = noun.french.split(" ")
        assert noun.gender == GENDERS[head], noun
        assert noun.french_plural == " ".join([PLURALS.get(head, head + "s"), *rest])


def test_every_adjective_is_in_the_table() -> None:
    assert {(adjective.masculine, adjective.feminine) for adjective in ADJECTIVES.values()} == set(
        FEMININES.items()
    )


def test_english_verbs_have_the_forms_of_the_table() -> None:
    for verb in VERBS.values():
        base = verb.english_words[0]
        stem = base.removesuffix("e")
        third, past, progressive = ENGLISH_FORMS.get(base, [base + "s", stem + "ed", stem + "ing"])
        assert english._present(base, 2) == third
        assert verb.english_past == past
        if verb.progressive:
            assert english._progressive(base) == progressive


# ---------------------------------------------------------------- French, over thousands of sentences

LETTER = "[a-zâàçéèêîïôœûùA-ZÉÎÂŒ]"
UNELIDED = "hibou|héros|hache|huit|onze"
ADVERBS = "(?:pas|jamais|souvent|toujours|parfois|rarement)"


def test_words_before_a_noun_have_its_gender(french_sentences: list[str]) -> None:
    masculine = (
        "le un ce cet du au quel vieux vieil beau bel nouveau nouvel bon mauvais petit grand joli long"
    )
    feminine = "la une cette quelle vieille belle nouvelle bonne mauvaise petite grande jolie longue sa ma ta"
    before = dict.fromkeys(join_names(masculine), "m") | dict.fromkeys(join_names(feminine), "f")
    homographs = {"ferme", "porte", "souris", "bus", "fils", "héros", "ours"}
    seen: Counter[str] = Counter()
    for text in french_sentences:
        for word, noun in re.findall(rf"(?=\b({'|'.join(before)}) ({LETTER}+))", text.lower()):
            if noun in GENDERS and noun not in homographs:
                seen[word] += 1
                assert before[word] == GENDERS[noun], text
    assert set(seen) == set(before), "each of them is tried"


def test_words_before_a_plural_have_its_gender(french_sentences: list[str]) -> None:
    before = dict.fromkeys(("tous les", "quels", "beaux", "nouveaux"), "m") | dict.fromkeys(
        ("toutes les", *join_names("quelles vieilles belles nouvelles bonnes grandes petites")), "f"
    )
    seen = set()
    for text in french_sentences:
        for word, noun in re.findall(rf"\b({'|'.join(before)}) ({LETTER}+)", text.lower()):
            if noun in PLURAL_GENDERS:
                seen.add(word)
                assert PLURAL_GENDERS[noun] == before[word], text
    assert seen == set(before)


def test_adjectives_after_a_noun_agree_with_it(french_sentences: list[str]) -> None:
    """Attributes follow the noun; predicates follow a form of être whose subject opens the sentence."""
    singular, plural = r"(?:le|la|un|une|ce|cet|cette|mon|ma|son|sa) |l'", "(?:les|des|ces|mes|ses) "
    between = r"(?:pas|jamais|toujours|souvent|parfois|rarement|plus|très|trop|assez|un peu|vraiment)"
    patterns = {
        "attribute": rf"\b(?:({plural})|{singular})({LETTER}+) ({LETTER}+)",
        "predicate": rf"^(?:({plural})|{singular})({LETTER}+) (?:ne |n')?"
        rf"(?:est|était|sera|sont|étaient|seront) (?:{between} )*({LETTER}+)",
    }
    seen: Counter[tuple[str, str, bool]] = Counter()
    for text in french_sentences:
        for position, pattern in patterns.items():
            for many, noun, word in re.findall(pattern, text.lower()):
                gender = (PLURAL_GENDERS if many else GENDERS).get(noun)
                if gender and word in ADJECTIVE_FORMS and word != "prête":  # also a form of prêter
                    seen[position, gender, bool(many)] += 1
                    assert (gender, bool(many)) in ADJECTIVE_FORMS[word], text
    assert len(seen) == 8 and min(seen.values()) > 20, seen


def test_what_is_elided_and_what_is_not(french_sentences: list[str]) -> None:
    vowel = "[aâàeéèêiîoôœuûhy]"
    assert not violations(rf"(?i)\b([jmtlsdn]e|la|que|ma|ta|sa|ce) (?!{UNELIDED}){vowel}", french_sentences)
    assert not violations(rf"(?i)\b([jmtlsdn]|qu)'(?!{vowel})", french_sentences)
    assert not violations(rf"(?i)\b([jmtlsdn]|qu)'({UNELIDED})", french_sentences)
    assert not violations(r"(?i)\bsi ils?\b|\bs'elle", french_sentences)
    singular = "le|un|ce|quel|mon|ton|son|notre|votre|leur|du|au"
    assert not violations(rf"(?i)\b({singular}) (beau|vieux|nouveau) (?!{UNELIDED}){vowel}", french_sentences)
    assert not violations(rf"(?i)\b(bel|vieil|nouvel|cet) (?!{vowel}|{UNELIDED})", french_sentences)
    for form in ("J'ai", "qu'il", "n'est", "d'a", "l'h", "s'il", "n'y", "le hibou", "le héros", "la hache"):
        assert any(form in text for text in french_sentences), form


def test_prepositions_contract(french_sentences: list[str]) -> None:
    assert not violations(r"(?i)\b(à|de) les?\b", french_sentences)
    assert not violations(r"\bde (du|des|de)\b", french_sentences)
    for form in (" au ", " aux ", " du ", " des ", "à l'", "de l'"):
        assert any(form in text for text in french_sentences), form


def test_negation_has_both_halves(pairs: dict[str, Pairs]) -> None:
    for source, target in (pair for split in SPLITS for pair in pairs[split]):
        halves = len(re.findall(r"\bne\b|\bn'", target))
        denied = len(re.findall(r"\b(not|cannot|never|no longer|no)\b", source))
        assert halves == denied, (source, target)
        # Each `ne` must be followed within three words by its second half.
        assert len(re.findall(r"\b(?:ne |n')(?:\S+ ){1,3}?(?:pas|jamais|plus)\b", target)) == denied, target


def test_participles_with_etre_agree_with_the_subject(french_sentences: list[str]) -> None:
    participle = r"(allé|arrivé|venu|revenu|parti|sorti|tombé|entré|resté|devenu|levé|amusé|arrêté)(e?s?)"
    expected = {r"[EeÉ]lle (?:n'|ne |s'|ne s')?est": "e", r"\b[Ii]l (?:n'|ne |s'|ne s')?est": ""}
    expected |= {r"[Ee]lles (?:ne |se |ne se )?sont": "es", r"\b[Ii]ls (?:ne |se |ne se )?sont": "s"}
    expected |= {r"[Nn]ous (?:ne |nous |ne nous )?sommes": "s", r"\b[Jj]e (?:ne |me |ne me )?suis": ""}
    seen: Counter[str] = Counter()
    for text in french_sentences:
        for subject, ending in expected.items():
            for _, found in re.findall(rf"{subject}(?: {ADVERBS})* {participle}\b", text):
                seen[subject] += 1
                assert found == ending, text
    assert set(seen) == set(expected)


def test_participles_with_avoir_agree_with_what_comes_before(french_sentences: list[str]) -> None:
    forms = {
        form: (gender, plural)
        for word in PARTICIPLES
        for form, gender, plural in (
            (word, "m", False),
            (word + "e", "f", False),
            (word + "s", "m", True),
            (word + "es", "f", True),
        )
    }
    relative = re.compile(
        rf"\b(le|la|l'|les|combien de|quelles?|quels?) ?({LETTER}+) (?:est-ce )?(?:que |qu')"
        rf"(?:{LETTER}+ ){{1,2}}(?:a|ont|ai|avons) (?:{ADVERBS} )*({LETTER}+)"
    )
    seen: Counter[tuple[str, bool]] = Counter()
    for text in french_sentences:
        for article, noun, word in relative.findall(text.lower()):
            plural = article.endswith(("s", "de"))
            gender = (PLURAL_GENDERS if plural else GENDERS).get(noun)
            if gender and word in forms and not word.endswith("pris"):
                seen[gender, plural] += 1
                assert forms[word] == (gender, plural), text
    assert len(seen) == 4 and min(seen.values()) > 20
    # A participle before its object does not agree.
    behind = rf"\b[Ii]l a ({LETTER}+) (?:le|la|les|un|une|des) "
    assert all(forms.get(word, ("m", False)) == ("m", False) for text in french_sentences
               for word in re.findall(behind, text))  # fmt: skip


def test_verbs_agree_with_pronouns(french_sentences: list[str]) -> None:
    clitic = r"(?:(?:ne|me|te|se|nous|vous|le|la|les|lui|leur|y) |[nmtsl]')*"
    endings = {
        r"\b[Nn]ous": r"(?:ons|ommes)", r"\b[Vv]ous": r"(?:ez|êtes|tes)", r"\b[Tt]u": r"(?:s|x)",
        r"\b(?:[Ii]ls|[Ee]lles)": r"(?:nt)", r"\b(?:[Ii]l|[Ee]lle)": r"(?:[eatd]|ît)",
        r"\b[Jj]e": r"(?:[esx]|ai)",
    }  # fmt: skip
    strong = r"(?:avec|sans|que|à|chez) (?:nous|vous|elle|elles)|(?:qu'|aussi |plus )elles?\b"
    checked: Counter[str] = Counter()
    for text in french_sentences:
        if re.search(strong, text):
            continue
        for subject, ending in endings.items():
            # At the start of a sentence or clause the pronoun is the subject; elsewhere it may be an object.
            match = re.match(
                rf"(?:.*(?:et|mais|que|si|quand|,) )?{subject} {clitic}({LETTER}+)(?= |\.|$)", text
            )
            if match and not re.search(rf"{subject} \b(?:et|ou)\b", text):
                checked[subject] += 1
                assert re.search(rf"{ending}$", match[1]), (text, match[1])
    assert min(checked.values()) > 50 and len(checked) == len(endings)


def test_typography(pairs: dict[str, Pairs]) -> None:
    for source, target in (pair for split in SPLITS for pair in pairs[split]):
        assert source[0].isupper() and target[0].isupper()
        assert source[-1] in ".?" and target.endswith(" ?" if source[-1] == "?" else ".")
        for text in (source, target):
            assert "  " not in text and " ," not in text and " '" not in text and text == text.strip()


def test_english_articles_and_agreement(pairs: dict[str, Pairs]) -> None:
    sources = [source for split in SPLITS for source, _ in pairs[split]]
    said = [source for source in sources if source.endswith(".")]
    assert not violations(r"(?i)\ba (?!useful)[aeiou]|\ban (?!honest|hour)[^aeiou]|\ba honest", sources)
    assert not violations(r"\b([Hh]e|[Ss]he|[Ii]t) (have|do|are|were|go|am|come|see|give)\b", said)
    assert not violations(r"\b([Ww]e|[Tt]hey) (has|does|is|was|am|comes|sees|gives)\b", said)
    finite = "is|are|was|has|had|does|did|goes|went|comes|came|sees|saw|bought|gave"
    assert not violations(rf"\b(does|did|will|can|must|cannot) (not |never |no longer )?({finite})\b", said)


# ---------------------------------------------------------------- the corpus


def test_one_english_sentence_has_one_translation() -> None:
    """Draw enough sentences that many are drawn repeatedly."""
    drawn: dict[str, str] = {}
    again = 0
    source = Clauses(random.Random(5))
    for _ in range(40_000):
        sentence = draw_sentence(source)
        english_text, french_text = english.spell(sentence), french.spell(sentence)
        again += english_text in drawn
        assert drawn.setdefault(english_text, french_text) == french_text, english_text
    assert again > 500


def test_there_are_hundreds_of_thousands_of_pairs(pairs: dict[str, Pairs]) -> None:
    """Estimate the size N: two samples of n sentences share about n²/N."""
    other = {source for source, _ in translation_pairs(15_000, 2, "train")}
    common = sum(source in other for source, _ in pairs["train"])
    assert common > 0
    assert 15_000 * len(pairs["train"]) / common > 300_000


def test_pairs_are_a_function_of_count_seed_and_split() -> None:
    assert translation_pairs(50, 3, "test") == translation_pairs(200, 3, "test")[:50]
    assert translation_pairs(50, 3, "train") != translation_pairs(50, 4, "train")
    assert len({source for source, _ in translation_pairs(500, 3, "train")}) == 500
    assert translation_pairs(0, 3, "train") == []


def test_splits_share_no_sentence(pairs: dict[str, Pairs]) -> None:
    sources = {split: {source for source, _ in pairs[split]} for split in SPLITS}
    assert not sources["train"] & sources["test"]
    assert not sources["train"] & sources["validation"]
    assert not sources["validation"] & sources["test"]


def test_held_out_combinations_are_held_out(pairs: dict[str, Pairs]) -> None:
    """Check in the text: a held-out adjective never appears next to its noun in train."""
    verbs = [(verb, noun) for verb in VERBS.values() for noun in verb.objects]
    adjectives = [(word, noun) for word in ADJECTIVES.values() for noun in word.nouns]
    for split in ("validation", "test"):
        assert sum(split_of(each) == split for each in verbs) > 80
        assert sum(split_of(each) == split for each in adjectives) > 80
    beside = {
        f"{word.english} {form}": split_of((word, noun))
        for word, noun in adjectives
        for form in (noun.english, noun.english_plural)
    }
    for split in SPLITS:
        found = {words for source, _ in pairs[split] for words in re.findall(r"(?=\b(\w+ \w+)\b)", source)}
        splits = {beside[words] for words in found if words in beside}
        assert splits == {split, "train"}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_every_held_out_sentence_needs_a_new_combination(split: str) -> None:
    source = sentences(1, split)
    for _ in range(500):
        found = {split_of(each) for each in combinations(next(source))}
        assert split in found and found <= {split, "train"}


def test_train_has_every_word(pairs: dict[str, Pairs]) -> None:
    seen = {word for source, _ in pairs["train"] for word in re.findall(r"[\w-]+", source)}
    assert not {noun.english for noun in NOUNS.values()} - seen
    assert not {word.english for word in ADJECTIVES.values()} - seen
    for verb in VERBS.values():
        base = verb.english_words[0]
        assert {base, verb.english_past, english._present(base, 2)} & seen, verb.english
    # Held-out sentences contain at most a few rare verb forms that train does not.
    known = {word for _, target in pairs["train"] for word in re.findall(r"[\w-]+", target)}
    for split in ("validation", "test"):
        words = [word for _, target in pairs[split] for word in re.findall(r"[\w-]+", target)]
        assert sum(word not in known for word in words) / len(words) < 0.002


def test_train_has_every_construction() -> None:
    for construction in CONSTRUCTIONS:
        draw = Clauses(random.Random(2))
        found: Counter[str] = Counter()
        for _ in range(200):
            draw.start()
            sentence = construction(draw)
            found.update(split for split in SPLITS if belongs(sentence, split))
        assert found["train"] > 100, CONSTRUCTIONS.index(construction)


def test_an_unknown_split_is_rejected() -> None:
    with pytest.raises(UserError, match="no such split") as raised:
        translation_pairs(1, 0, "dev")
    assert "train, validation, test" in str(raised.value)


def test_it_is_fast() -> None:
    translation_pairs(100, 9, "train")
    start = time.process_time()
    translation_pairs(10_000, 9, "train")
    assert time.process_time() - start < 1.0, "50,000 pairs in 5 seconds"


# ---------------------------------------------------------------- tables


@dataclass
class Entry:
    name: str
    gender: Literal["m", "f"]
    plain: bool


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name\tplain\n", "table.tsv:1: the header must be"),
        ("name\tgender\tplain\nowl\tm\n", "table.tsv:2: 2 cells in a table of 3 columns"),
        ("name\tgender\tplain\nowl\tm\tyes\nhen\tx\tno\n", "table.tsv:3: gender cannot be 'x'"),
        ("name\tgender\tplain\nowl\tm\tTrue\n", "table.tsv:2: plain cannot be 'True'"),
    ],
)
def test_a_wrong_table_is_reported_with_its_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table.tsv").write_text(text, encoding="utf-8")
    monkeypatch.setattr(tables, "files", lambda package: tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        tables.read_table("table.tsv", Entry)


def test_a_table_keeps_its_order_and_its_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table.tsv").write_text("name\tgender\tplain\nowl\tm\tyes\n\tf\tno\n", encoding="utf-8")
    monkeypatch.setattr(tables, "files", lambda package: tmp_path)
    assert tables.read_table("table.tsv", Entry) == [Entry("owl", "m", True), Entry("", "f", False)]
