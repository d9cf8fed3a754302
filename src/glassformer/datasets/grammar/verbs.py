"""The verbs, by what follows them in French, with who does it and to what."""

from __future__ import annotations

from glassformer.datasets.grammar.lexicon import Determination, Frame, Verb, by_name, rows
from glassformer.datasets.grammar.nouns import nouns_of

# A line: English[/past of its first word]; French; flags; subjects; objects.
# A past is given where no rule makes it. Flags: e with être, s stative, d definite objects only,
# g definite or generic objects, i indefinite objects only, n never progressive in English.
_VERBS: dict[Frame, str] = {
    "none": """
        work; travailler; ; people;
        sleep/slept; dormir; ; beings;
        sing/sang; chanter; ; people bird;
        dance; danser; ; people;
        smile; sourire; ; people;
        laugh; rire; ; people;
        cry; pleurer; ; people;
        swim/swam; nager; ; beings -spider -hen -owl;
        run/ran; courir; ; beings -spider;
        walk; marcher; ; beings -bird -spider;
        travel; voyager; ; people;
        wait; attendre; ; people;
        play the piano; jouer du piano; ; people;
        play the guitar; jouer de la guitare; ; people;
        play tennis; jouer au tennis; ; people;
        play cards; jouer aux cartes; ; people;
        leave/left; partir; e; people transport;
        come/came; venir; e; people;
        arrive; arriver; e; people transport;
        fall/fell; tomber; e; people donkey horse;
        go out/went; sortir; e; beings -owl -bird;
        come in/came; entrer; e; people dog cat hen goose;
        wake up/woke; se réveiller; ; people dog cat bear;
        get up/got; se lever; ; people dog donkey;
        hurry; se dépêcher; ; people;
        rest; se reposer; ; people dog cat horse;
        get dressed/got; s'habiller; ; people;
        go for a walk/went; se promener; ; people;
        have fun/had; s'amuser; ; people;
        get lost/got; se perdre; ; people dog cat;
        stop; s'arrêter; ; people car truck transport clock;
        be hungry/was; avoir faim; s; beings;
        be thirsty/was; avoir soif; s; beings;
        be cold/was; avoir froid; s; people dog cat bird donkey;
        be hot/was; avoir chaud; s; people dog cat bear cow;
        be sleepy/was; avoir sommeil; s; people dog cat bear;
        be right/was; avoir raison; s; people;
        be wrong/was; avoir tort; s; people;
        """,
    "direct": """
        see/saw; voir; n; beings; beings plant vehicle transport sights
        buy/bought; acheter; ; people; wares flower rose house
        sell/sold; vendre; ; people; wares art house cow horse
        eat/ate; manger; ; beings -owl; food
        drink/drank; boire; ; people; drink
        love; aimer; sg; people; beings -spider food drink tale game plant sights garden city
        hate; détester; sg; people; spider mouse wolf owl meat cheese onion soup beer game hospital city film
        prefer; préférer; sg; people; dog cat horse food drink tale city park beach
        know/knew; connaître; sd; people; people text tale places
        want; vouloir; s; people; food drink money clothes object vehicle dog cat horse bird
        have/had; avoir; si; people; kin animal clothes object container text vehicle house garden farm castle
        find/found; trouver; ; people; animal object container money text clothes
        lose/lost; perdre; d; people; object -clock -axe container -bottle clothes money dog cat text
        look for; chercher; ; people; object container clothes animal text school hotel station
        look at; regarder; ; people dog cat; beings art clothes plant clock river vehicle film
        listen to; écouter; d; people; people song story bird
        wait for; attendre; d; people; people transport letter
        open; ouvrir; ; people; opening container wardrobe letter gift
        close; fermer; d; people; opening container wardrobe book shop
        break/broke; casser; ; people cat; plate cup bottle lamp mirror window chair toy clock
        wash; laver; ; people; clothes plate cup knife car truck dog horse
        clean; nettoyer; d; people; kitchen house office school shop opening furniture -bed
        draw/drew; dessiner; ; people; animal plant house castle church bridge boat
        paint; peindre; ; people; opening furniture -bed -armchair animal boat plant house
        write/wrote; écrire; ; people; book letter poem story song
        take/took; prendre; ; people; object -clock -computer container transport clothes money book newspaper
        choose/chose; choisir; ; people; wares tale hotel restaurant
        build/built; construire; ; people; house school hospital hotel castle church bridge boat
        carry; porter; ; people; container furniture -wardrobe -bed child
        wear/wore; porter; ; people; clothes
        understand/understood; comprendre; dn; people; study -game people poem story film
        hear/heard; entendre; n; beings; beings -spider song train
        forget/forgot; oublier; d; people; object container clothes money lesson song
        help; aider; ; people; people
        follow; suivre; ; beings; beings -spider vehicle -bicycle river
        invite; inviter; ; people; people
        call; appeler; ; people; people dog cat
        visit; visiter; ; people; school farm public -market -shop -station city island
        hide/hid; cacher; ; people; money object container letter
        keep/kept; garder; d; people; object money text dog cat
        throw/threw; jeter; ; people; ball toy hat shoe axe
        finish; finir; d; people; study text -newspaper painting soup cake
        begin/began; commencer; ; people; study text -newspaper painting
        receive; recevoir; ; people; letter gift money book newspaper flower
        meet/met; rencontrer; ; people; people
        thank; remercier; d; people; people
        repair; réparer; ; people; vehicle transport lamp clock computer toy shoe chair table bridge
        drive/drove; conduire; ; people; car truck bus train
        catch/caught; attraper; ; people cat dog wolf; mouse bird rabbit ball spider
        admire; admirer; d; people; people art castle church city plant clothes
        """,
    "to": """
        talk to; parler; ; people; beings -spider
        answer; répondre; ; people; people
        obey; obéir; d; people; people
        phone; téléphoner; ; people; people
        smile at; sourire; ; people; people
        """,
    "of": """
        need; avoir besoin; s; people; people money tools clothes container vehicle water bread book
        be afraid of/was; avoir peur; sg; beings; people animal
        talk about; parler; ; people; people text tale game painting city island
        remember; se souvenir; d; people; people text tale painting city island house garden
        dream of; rêver; ; people; castle house island garden boat horse prince princess
        """,
    "give": """
        give/gave; donner; ; people; food drink money clothes object container text art plant dog cat
        show; montrer; ; people; object clothes container text art vehicle house garden
        send/sent; envoyer; ; people; letter gift money flower book art
        lend/lent; prêter; ; people; money object -gift -jewel container clothes book vehicle
        bring/brought; apporter; ; people; food drink object -clock text chair flower rose money
        offer; offrir; ; people; jewel gift flower rose clothes book cake
        explain; expliquer; d; people; lesson exercise game film poem
        tell/told; raconter; ; people; story
        """,
    "move": """
        go/went; aller; e; people;
        come back/came; revenir; e; people;
        live; habiter; s; people;
        stay; rester; e; people;
        """,
}

_DETERMINERS: dict[str, Determination] = {"d": "definite", "g": "generic", "i": "indefinite"}


def english_past(verb: str) -> str:
    """The past of a regular verb."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return (verb + verb[-1] if verb in DOUBLED else verb) + "ed"


DOUBLED = frozenset({"stop", "run", "swim", "begin", "forget", "get", "prefer"})
"""Verbs that double their last letter before -ed and -ing."""


def _verb(frame: Frame, english: str, french: str, flags: str, subjects: str, objects: str) -> Verb:
    base, _, past = english.partition("/")
    first = base.split(" ")[0]
    reflexive = french.startswith(("se ", "s'"))
    infinitive, *rest = french.removeprefix("se ").removeprefix("s'").split(" ")
    return Verb(
        english=base,
        english_past=past or english_past(first),
        french=infinitive,
        french_rest=tuple(rest),
        frame=frame,
        reflexive=reflexive,
        with_etre=reflexive or "e" in flags,
        stative="s" in flags,
        progressive="s" not in flags and "n" not in flags,
        determiners=next((name for flag, name in _DETERMINERS.items() if flag in flags), "any"),
        subjects=nouns_of(subjects),
        objects=nouns_of(objects),
    )


def _read(frame: Frame, cells: list[str]) -> Verb:
    english, french, flags, subjects, objects = cells
    return _verb(frame, english, french, flags, subjects, objects)


VERBS = by_name(
    [_read(frame, cells) for frame, table in _VERBS.items() for cells in rows(table, ";")],
    lambda verb: verb.english,
)


def _copula(english: str, past: str, french: str, *, with_etre: bool = False, stative: bool = True) -> Verb:
    return Verb(english, past, french, (), "none", False, with_etre, stative, not stative, "any", (), ())


def verbs_of(names: str) -> tuple[Verb, ...]:
    """Verbs by name, with commas between."""
    return tuple(VERBS[name] for name in names.split(","))


BE = _copula("be", "was", "être")
SEEM = _copula("seem", "seemed", "sembler")
BECOME = _copula("become", "became", "devenir", with_etre=True, stative=False)
HAVE_YEARS = _copula("be", "was", "avoir")
"""Of ages: she is ten years old, elle a dix ans."""
THERE_BE = _copula("be", "was", "avoir")
"""With the subject THERE: there is, il y a."""

REPORTING = by_name(
    [
        _copula("say", "said", "dire"),
        _copula("think", "thought", "penser"),
        _copula("know", "knew", "savoir"),
        _copula("believe", "believed", "croire"),
        _copula("hope", "hoped", "espérer"),
    ],
    lambda verb: verb.english,
)
"""They are followed by a clause: she says that …"""
