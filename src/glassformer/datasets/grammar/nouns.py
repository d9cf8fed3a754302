"""The nouns, by what they are: a verb or an adjective goes with some kinds only."""

from __future__ import annotations

from glassformer.datasets.grammar.lexicon import Noun, by_name, pool, rows

# A line: English[/plural], French[/plural], gender. A plural is given where no rule makes it.
_NOUNS = {
    "parent": """
        father, père, m
        mother, mère, f
        grandfather, grand-père, m
        grandmother, grand-mère, f
        """,
    "kin": """
        brother, frère, m
        sister, sœur, f
        son, fils, m
        daughter, fille, f
        uncle, oncle, m
        aunt, tante, f
        friend, ami, m
        neighbor, voisin, m
        """,
    "person": """
        man/men, homme, m
        woman/women, femme, f
        boy, garçon, m
        girl, fille, f
        child/children, enfant, m
        king, roi, m
        queen, reine, f
        prince, prince, m
        princess, princesse, f
        doctor, médecin, m
        teacher, professeur, m
        student, étudiant, m
        soldier, soldat, m
        tourist, touriste, m
        artist, artiste, m
        thief/thieves, voleur, m
        hero/heroes, héros, m
        nurse, infirmière, f
        actress, actrice, f
        waitress, serveuse, f
        """,
    "animal": """
        dog, chien, m
        cat, chat, m
        horse, cheval, m
        bird, oiseau, m
        cow, vache, f
        rabbit, lapin, m
        mouse/mice, souris, f
        goose/geese, oie, f
        wolf/wolves, loup, m
        owl, hibou/hiboux, m
        bear, ours, m
        donkey, âne, m
        spider, araignée, f
        hen, poule, f
        """,
    "snack": """
        apple, pomme, f
        orange, orange, f
        egg, œuf, m
        cake, gâteau, m
        potato/potatoes, pomme de terre/pommes de terre, f
        tomato/tomatoes, tomate, f
        onion, oignon, m
        strawberry, fraise, f
        pear, poire, f
        cookie, biscuit, m
        """,
    "foodstuff": """
        bread, pain, m
        cheese, fromage, m
        meat, viande, f
        rice, riz, m
        soup, soupe, f
        honey, miel, m
        chocolate, chocolat, m
        """,
    "drink": """
        water, eau, f
        milk, lait, m
        tea, thé, m
        coffee, café, m
        wine, vin, m
        beer, bière, f
        """,
    "cash": """
        money, argent, m
        """,
    "clothes": """
        shirt, chemise, f
        dress, robe, f
        hat, chapeau, m
        coat, manteau, m
        shoe, chaussure, f
        scarf/scarves, écharpe, f
        skirt, jupe, f
        glove, gant, m
        """,
    "object": """
        key, clé, f
        knife/knives, couteau, m
        lamp, lampe, f
        clock, horloge, f
        mirror, miroir, m
        umbrella, parapluie, m
        toy, jouet, m
        ball, balle, f
        computer, ordinateur, m
        jewel, bijou/bijoux, m
        plate, assiette, f
        cup, tasse, f
        axe, hache, f
        gift, cadeau, m
        """,
    "container": """
        box, boîte, f
        bag, sac, m
        bottle, bouteille, f
        suitcase, valise, f
        """,
    "text": """
        book, livre, m
        letter, lettre, f
        newspaper, journal, m
        poem, poème, m
        """,
    "tale": """
        story, histoire, f
        song, chanson, f
        film, film, m
        """,
    "study": """
        lesson, leçon, f
        question, question, f
        exercise, exercice, m
        game, jeu/jeux, m
        """,
    "art": """
        painting, tableau, m
        picture, image, f
        """,
    "furniture": """
        table, table, f
        chair, chaise, f
        bed, lit, m
        armchair, fauteuil, m
        wardrobe, armoire, f
        desk, bureau, m
        """,
    "opening": """
        door, porte, f
        window, fenêtre, f
        """,
    "vehicle": """
        car, voiture, f
        bicycle, vélo, m
        boat, bateau, m
        truck, camion, m
        """,
    "transport": """
        train, train, m
        plane, avion, m
        bus, bus, m
        """,
    "plant": """
        tree, arbre, m
        flower, fleur, f
        rose, rose, f
        """,
    "home": """
        house, maison, f
        garden, jardin, m
        kitchen, cuisine, f
        office, bureau, m
        village, village, m
        school, école, f
        farm, ferme, f
        """,
    "public": """
        church, église, f
        hospital, hôpital, m
        hotel, hôtel, m
        castle, château, m
        shop, magasin, m
        museum, musée, m
        restaurant, restaurant, m
        station, gare, f
        library, bibliothèque, f
        market, marché, m
        """,
    "outdoors": """
        park, parc, m
        forest, forêt, f
        river, rivière, f
        beach, plage, f
        city, ville, f
        street, rue, f
        island, île, f
        bridge, pont, m
        """,
}

MASS_KINDS = frozenset({"foodstuff", "drink", "cash"})
PEOPLE_KINDS = frozenset({"parent", "kin", "person"})

GROUPS = {
    "people": "parent kin person",
    "beings": "people animal",
    "charming": "man woman boy girl child king queen prince princess actress",
    "citizens": "man woman boy girl doctor teacher student soldier tourist artist actress",
    "food": "snack foodstuff",
    "colored": "clothes lamp ball cup container car bicycle boat truck opening chair armchair",
    "tools": "key knife lamp clock mirror umbrella computer axe",
    "goods": "clothes object container text art furniture vehicle",
    "wares": "food drink clothes object container text furniture vehicle",
    "sights": "house castle church island river bridge",
    "buildings": "house school farm public",
    "places": "home public outdoors",
}


def _french_plural(french: str) -> str:
    if french.startswith("grand-"):
        return "grands-" + french.removeprefix("grand-") + "s"
    return regular_plural(french)


def regular_plural(french: str) -> str:
    """The plural of a French noun, or of an adjective's masculine."""
    if french.endswith(("s", "x", "z")):
        return french
    if french.endswith("al"):
        return french[:-2] + "aux"
    return french + ("x" if french.endswith("eau") else "s")


def _english_plural(english: str) -> str:
    if english.endswith("y") and english[-2] not in "aeiou":
        return english[:-1] + "ies"
    return english + ("es" if english.endswith(("s", "x", "ch", "sh")) else "s")


def _noun(kind: str, english: str, french: str, gender: str) -> Noun:
    singular, _, plural = english.partition("/")
    french_singular, _, french_plural = french.partition("/")
    if gender not in ("m", "f"):
        raise ValueError(f"{english}: the gender is m or f, not {gender!r}")
    return Noun(
        english=singular,
        english_plural=plural or _english_plural(singular),
        french=french_singular,
        french_plural=french_plural or _french_plural(french_singular),
        gender="m" if gender == "m" else "f",
        kind=kind,
    )


NOUNS = by_name(
    [_noun(kind, *cells) for kind, table in _NOUNS.items() for cells in rows(table)],
    lambda noun: noun.english,
)
if NOUNS.keys() & {*_NOUNS, *GROUPS}:
    raise ValueError("a noun and a kind or group of nouns are called the same")


def nouns_of(names: str) -> tuple[Noun, ...]:
    """The nouns of a list of nouns, kinds and groups."""
    return pool(names, NOUNS, GROUPS)
