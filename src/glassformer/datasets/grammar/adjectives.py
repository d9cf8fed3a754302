"""The adjectives, with the nouns that each goes with."""

from __future__ import annotations

from glassformer.datasets.grammar.lexicon import Adjective, Noun, by_name, rows
from glassformer.datasets.grammar.nouns import NOUNS, nouns_of

# A line: English; comparative; French masculine[/feminine[/masculine before a vowel]]; flags; nouns.
# A feminine is given where no rule makes it. Flags: b before the noun, a attributive, p predicative only.
_ADJECTIVES = """
    big; bigger; grand; b; animal snack goods transport plant home public park forest beach city
    tall; taller; grand; p; people tree
    small; smaller; petit; b; boy girl child animal snack goods opening plant home public island park
    beautiful; more beautiful; beau/belle/bel; b; charming bird horse clothes art plant tale places
    old; older; vieux/vieille/vieil; b; beings goods transport tree buildings bridge city village
    new; ; nouveau/nouvelle/nouvel; ab; clothes object text tale game vehicle school hotel friend student
    good; better; bon/bonne; b; food drink text tale game restaurant hotel doctor teacher student
    bad; ; mauvais; b; tale book restaurant coffee wine beer soup rice student
    young; younger; jeune; b; person -child animal
    pretty; prettier; joli; b; girl princess clothes plant art house garden village song poem
    long; longer; long/longue; b; letter poem tale lesson street river bridge skirt scarf
    red; ; rouge; ; colored apple wine rose
    blue; ; bleu; ; colored bird
    green; ; vert; ; colored apple tea forest park
    white; ; blanc/blanche; ; colored animal wine rose house
    black; ; noir; ; colored animal
    gray; ; gris; ; colored cat mouse horse wolf donkey
    happy; happier; heureux; ; people
    sad; sadder; triste; ; people tale poem
    tired; ; fatigué; p; beings
    sick; ; malade; ; beings
    rich; richer; riche; ; people city
    poor; poorer; pauvre; p; people
    intelligent; more intelligent; intelligent; ; people dog horse donkey
    kind; kinder; gentil/gentille; ; people dog
    polite; more polite; poli; ; people
    funny; funnier; drôle; ; people tale
    famous; more famous; célèbre; ; person city museum painting tale castle
    brave; braver; courageux; ; people
    jealous; more jealous; jaloux/jalouse; ; people
    serious; more serious; sérieux; ; people
    proud; prouder; fier; p; people
    lazy; lazier; paresseux; ; people cat donkey
    shy; ; timide; ; people
    strong; stronger; fort; ; people bear horse donkey
    honest; more honest; honnête; ; people
    active; more active; actif; ; people
    ready; ; prêt; p; people
    loyal; more loyal; loyal; ; friend soldier dog student
    interesting; more interesting; intéressant; ; text tale study museum city
    boring; ; ennuyeux; ; text tale study
    difficult; more difficult; difficile; ; study poem
    easy; easier; facile; ; study
    expensive; more expensive; cher; ; clothes tools jewel furniture vehicle hotel chocolate honey wine beer
    heavy; heavier; lourd; ; container furniture coat axe
    empty; ; vide; ; container transport restaurant street house
    dirty; dirtier; sale; ; clothes container car dog kitchen street plate cup knife
    clean; cleaner; propre; ; clothes container car kitchen hotel plate cup knife beach park
    broken; ; cassé; ; tools toy plate cup bottle chair table window bed
    dangerous; more dangerous; dangereux; ; knife axe game street forest bear wolf river island beach
    modern; more modern; moderne; ; furniture transport lamp house school hospital hotel museum city painting
    delicious; ; délicieux; ; food coffee tea wine
    hot; hotter; chaud; ; soup tea coffee water rice potato chocolate
    cold; colder; froid; ; soup water beer milk meat rice
    fresh; fresher; frais/fraîche; ; bread egg milk strawberry cheese tomato onion
    sweet; sweeter; sucré; ; apple orange strawberry pear tea wine cake cookie honey
    round; ; rond; ; table box mirror plate window clock
    useful; more useful; utile; ; tools book lesson exercise car
    original; more original; original; ; text tale art gift hat game
    secret; ; secret/secrète; a; letter door garden island
    French; ; français; ; citizens text tale wine cheese car restaurant
    Italian; ; italien; ; citizens tale wine shoe car restaurant
    Spanish; ; espagnol; ; citizens tale wine shirt city
"""

# A comparative that is a word of its own, masculine and feminine.
_OWN_COMPARATIVES = {"bon": ("meilleur", "meilleure")}

_FEMININE_ENDINGS = {"eux": "euse", "er": "ère", "if": "ive", "en": "enne", "e": "e"}


def _feminine(masculine: str) -> str:
    for ending, feminine in _FEMININE_ENDINGS.items():
        if masculine.endswith(ending):
            return masculine.removesuffix(ending) + feminine
    return masculine + "e"


def _adjective(english: str, comparative: str, french: str, flags: str, names: str) -> Adjective:
    masculine, *others = french.split("/")
    feminine = others[0] if others else _feminine(masculine)
    return Adjective(
        english=english,
        comparative=comparative,
        masculine=masculine,
        feminine=feminine,
        masculine_before_vowel=others[1] if len(others) > 1 else masculine,
        own_comparative=_OWN_COMPARATIVES.get(masculine),
        before_noun="b" in flags,
        attributive="p" not in flags,
        predicative="a" not in flags,
        nouns=nouns_of(names),
    )


def _read(cells: list[str]) -> Adjective:
    english, comparative, french, flags, names = cells
    return _adjective(english, comparative, french, flags, names)


ADJECTIVES = by_name([_read(cells) for cells in rows(_ADJECTIVES, ";")], lambda word: word.english)

ATTRIBUTIVE: dict[Noun, tuple[Adjective, ...]] = {
    noun: tuple(word for word in ADJECTIVES.values() if word.attributive and noun in word.nouns)
    for noun in NOUNS.values()
}
PREDICATIVE: dict[Noun, tuple[Adjective, ...]] = {
    noun: tuple(word for word in ADJECTIVES.values() if word.predicative and noun in word.nouns)
    for noun in NOUNS.values()
}
"""By noun: the adjectives that may stand beside it, and those that may be said of it."""
