"""French words in their forms: conjugation, agreement, and what the next sound does to a word.

It knows words, not sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from glassformer.datasets.grammar.lexicon import Adjective, Gender
from glassformer.datasets.grammar.nouns import regular_plural

# Infinitive: je, tu, il, nous, vous, ils, past participle, stem of the future.
_IRREGULAR = {
    "être": "suis es est sommes êtes sont été ser",
    "avoir": "ai as a avons avez ont eu aur",
    "aller": "vais vas va allons allez vont allé ir",
    "boire": "bois bois boit buvons buvez boivent bu boir",
    "conduire": "conduis conduis conduit conduisons conduisez conduisent conduit conduir",
    "connaître": "connais connais connaît connaissons connaissez connaissent connu connaîtr",
    "construire": "construis construis construit construisons construisez construisent construit construir",
    "courir": "cours cours court courons courez courent couru courr",
    "croire": "crois crois croit croyons croyez croient cru croir",
    "devoir": "dois dois doit devons devez doivent dû devr",
    "dire": "dis dis dit disons dites disent dit dir",
    "dormir": "dors dors dort dormons dormez dorment dormi dormir",
    "écrire": "écris écris écrit écrivons écrivez écrivent écrit écrir",
    "offrir": "offre offres offre offrons offrez offrent offert offrir",
    "ouvrir": "ouvre ouvres ouvre ouvrons ouvrez ouvrent ouvert ouvrir",
    "partir": "pars pars part partons partez partent parti partir",
    "peindre": "peins peins peint peignons peignez peignent peint peindr",
    "pouvoir": "peux peux peut pouvons pouvez peuvent pu pourr",
    "prendre": "prends prends prend prenons prenez prennent pris prendr",
    "recevoir": "reçois reçois reçoit recevons recevez reçoivent reçu recevr",
    "rire": "ris ris rit rions riez rient ri rir",
    "savoir": "sais sais sait savons savez savent su saur",
    "sortir": "sors sors sort sortons sortez sortent sorti sortir",
    "suivre": "suis suis suit suivons suivez suivent suivi suivr",
    "venir": "viens viens vient venons venez viennent venu viendr",
    "voir": "vois vois voit voyons voyez voient vu verr",
    "vouloir": "veux veux veut voulons voulez veulent voulu voudr",
}
_COMPOUNDS = {
    "comprendre": ("com", "prendre"),
    "devenir": ("de", "venir"),
    "revenir": ("re", "venir"),
    "souvenir": ("sou", "venir"),
    "sourire": ("sou", "rire"),
}
# Verbs in -er whose stem changes where the ending is not heard.
_SILENT_STEMS = {
    "acheter": "achèt",
    "appeler": "appell",
    "envoyer": "envoi",
    "espérer": "espèr",
    "jeter": "jett",
    "lever": "lèv",
    "nettoyer": "nettoi",
    "préférer": "préfèr",
    "promener": "promèn",
}
_FUTURE_STEMS = {"envoyer": "enverr", "espérer": "espérer", "préférer": "préférer"}

_PRESENT_ER = ("e", "es", "e", "ons", "ez", "ent")
_PRESENT_IR = ("is", "is", "it", "issons", "issez", "issent")
_PRESENT_RE = ("s", "s", "", "ons", "ez", "ent")
_FUTURE = ("ai", "as", "a", "ons", "ez", "ont")
_IMPERFECT = ("ais", "ais", "ait", "ions", "iez", "aient")

Forms = tuple[tuple[str, ...], str, str]
"""The present in six persons, the past participle, the stem of the future."""


@cache
def _forms(infinitive: str) -> Forms:
    if infinitive in _COMPOUNDS:
        prefix, simple = _COMPOUNDS[infinitive]
        present, participle, future = _forms(simple)
        return tuple(prefix + form for form in present), prefix + participle, prefix + future
    if infinitive in _IRREGULAR:
        *six, participle, future = _IRREGULAR[infinitive].split(" ")
        return tuple(six), participle, future
    stem, ending = infinitive[:-2], infinitive[-2:]
    if ending == "er":
        return _present_er(infinitive, stem), stem + "é", _future_er(infinitive)
    if ending == "ir":
        return tuple(stem + end for end in _PRESENT_IR), stem + "i", infinitive
    if ending == "re":
        return tuple(stem + end for end in _PRESENT_RE), stem + "u", infinitive[:-1]
    raise ValueError(f"no conjugation is known for {infinitive!r}")


def _present_er(infinitive: str, stem: str) -> tuple[str, ...]:
    silent = _SILENT_STEMS.get(infinitive, stem)
    before_o = stem
    if stem.endswith("g"):
        before_o = stem + "e"
    elif stem.endswith("c"):
        before_o = stem[:-1] + "ç"
    stems = (silent, silent, silent, before_o, stem, silent)
    return tuple(each + end for each, end in zip(stems, _PRESENT_ER, strict=True))


def _future_er(infinitive: str) -> str:
    if infinitive in _FUTURE_STEMS:
        return _FUTURE_STEMS[infinitive]
    silent = _SILENT_STEMS.get(infinitive)
    return infinitive if silent is None else silent + "er"


@cache
def present(infinitive: str, person: int) -> str:
    """Persons are counted je, tu, il, nous, vous, ils from 0."""
    return _forms(infinitive)[0][person]


@cache
def future(infinitive: str, person: int) -> str:
    return _forms(infinitive)[2] + _FUTURE[person]


@cache
def imperfect(infinitive: str, person: int) -> str:
    stem = "ét" if infinitive == "être" else _forms(infinitive)[0][3].removesuffix("ons")
    return stem + _IMPERFECT[person]


@cache
def participle(infinitive: str, gender: Gender, plural: bool) -> str:
    """The past participle, agreeing."""
    masculine = _forms(infinitive)[1]
    return agree(masculine, masculine.replace("û", "u") + "e", gender, plural)


def agree(masculine: str, feminine: str, gender: Gender, plural: bool) -> str:
    if gender == "f":
        return feminine + "s" if plural else feminine
    return regular_plural(masculine) if plural else masculine


@cache
def adjective_form(adjective: Adjective, gender: Gender, plural: bool) -> str:
    return agree(adjective.masculine, adjective.feminine, gender, plural)


_VOWELS = frozenset("aâàeéèêiîoôœuûh")
# They open with a vowel, or with an h, but nothing is elided before them.
_UNELIDED = frozenset({"hibou", "hiboux", "héros", "hache", "haches", "huit", "onze"})


@cache
def opens_with_vowel(word: str) -> bool:
    return word == "y" or (word[0].lower() in _VOWELS and word not in _UNELIDED)


_ELIDED = frozenset({"je", "me", "te", "se", "le", "la", "ne", "de", "que"})


def join(words: Sequence[str]) -> str:
    """Words as they are written one after another: l'homme, qu'Anna, s'il."""
    written: list[str] = []
    last = len(words) - 1
    for place, word in enumerate(words):
        if place == last:
            written.append(word)
        elif word in _ELIDED and opens_with_vowel(words[place + 1]):
            written.append(word[:-1] + "'")
        elif word == "si" and words[place + 1] in ("il", "ils"):
            written.append("s'")
        else:
            written.append(word + " ")
    return "".join(written)


def after_a(words: Sequence[str]) -> list[str]:
    """`à` and what follows: au, aux, à l'."""
    return _contract("à", {"le": "au", "les": "aux"}, words)


def after_de(words: Sequence[str]) -> list[str]:
    """`de` and what follows: du, des, de l'."""
    return _contract("de", {"le": "du", "les": "des"}, words)


def _contract(preposition: str, contracted: dict[str, str], words: Sequence[str]) -> list[str]:
    article = words[0]
    if article in contracted and not (article == "le" and opens_with_vowel(words[1])):
        return [contracted[article], *words[1:]]
    return [preposition, *words]
