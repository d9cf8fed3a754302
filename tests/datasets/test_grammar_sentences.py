"""English and French of derivations, compared with sentences written by hand.

A case holds a derivation, built from the words of the lexicon, and both sentences.
"""

from __future__ import annotations

import pytest

from glassformer.datasets.grammar import english, french, lexicon, words
from glassformer.datasets.grammar.lexicon import ADJECTIVES, NOUNS, NUMBERS, VERBS, Name, Tense, Verb, Word
from glassformer.datasets.grammar.tree import (
    Abroad,
    Age,
    Clause,
    Comparison,
    Gap,
    Nominal,
    NounPhrase,
    Pair,
    Prepositional,
    Quality,
    Question,
    Sentence,
    Trade,
)
from glassformer.datasets.grammar.words import (
    AS,
    BE,
    BECOME,
    HAVE_YEARS,
    LESS,
    MORE,
    NEVER,
    NO_LONGER,
    NO_VERB,
    NOT,
    REPORTING,
    SEEM,
    THERE_BE,
)

PRESENT, PAST, FUTURE = Tense.PRESENT, Tense.PAST, Tense.FUTURE

PRONOUNS = {
    "I": words.I,
    "he": words.HE,
    "she": words.SHE,
    "we": words.WE,
    "they": words.THEY,
    "they (f)": words.THEY_FEMININE,
    "it": words.IT_MASCULINE,
    "it (f)": words.IT_FEMININE,
    "who": words.WHO,
    "there": words.THERE,
}
NAMES = {name.english: name for name in lexicon.NAMES}
ADDRESSES = {address.english: address for address in words.ADDRESSES}
DETERMINERS = {
    "the": words.THE,
    "a": words.A,
    "an": words.A,
    "some": words.SOME,
    "any": words.ANY,
    "no": words.NO,
    "this": words.THIS,
    "these": words.THIS,
    "many": words.MANY,
    "several": words.SEVERAL,
    "all": words.ALL,
    "which": words.WHICH,
    "how-many": words.HOW_MANY,
    "your-tu": words.YOUR_FAMILIAR,
    "your-vous": words.YOUR_POLITE,
    **{possessive.english: possessive for possessive in words.POSSESSIVES},
}
PLURALS = {noun.english_plural: noun for noun in NOUNS.values()}
TIMES = {time.english: time for times in lexicon.TIMES.values() for time in times}
FREQUENCIES = {word.english: word for word in words.FREQUENCIES}
DEGREES = {word.english: word for word in words.DEGREES}
COUNTRIES = {country.english: country for country in lexicon.COUNTRIES}
MODALS = {modal.english: modal for modal in words.MODALS}
TRADES = {trade.english: trade for trade in lexicon.PROFESSIONS}
PREPOSITIONS = {
    word.english: word
    for word in (
        *(words.WITH, words.WITHOUT, words.TO, words.FROM, words.IN, words.AT, words.ON, words.UNDER),
        *words.BESIDE,
    )
}


def n(text: str, relative: Clause | None = None) -> Nominal:
    """Parse an English noun phrase; without determiner and number it is generic."""
    if text in PRONOUNS:
        return PRONOUNS[text]
    if text.startswith("you "):
        return ADDRESSES[text.removeprefix("you ")].pronoun
    if text in NAMES:
        return NAMES[text]
    if " and " in text:
        first, second = (n(part) for part in text.split(" and "))
        assert isinstance(first, NounPhrase | Name) and isinstance(second, NounPhrase | Name)
        return Pair(first, second)
    owner = None
    if "'s " in text:
        whose, text = text.split("'s ")
        owner, text = n(whose), "the " + text
    parts = text.split(" ")
    determiner = DETERMINERS[parts.pop(0)] if parts[0] in DETERMINERS else None
    number = NUMBERS[parts.pop(0)] if parts[0] in NUMBERS else None
    *adjectives, noun = parts
    if determiner is None:
        determiner = words.BARE if number else words.GENERIC
    return NounPhrase(
        PLURALS.get(noun) or NOUNS[noun],
        noun in PLURALS,
        determiner,
        number,
        tuple(ADJECTIVES[word] for word in adjectives),
        owner,
        relative,
    )


def asked(text: str) -> NounPhrase:
    phrase = n(text)
    assert isinstance(phrase, NounPhrase)
    return phrase


def gap(text: str) -> Gap:
    return Gap(PLURALS.get(text) or NOUNS[text], text in PLURALS)


def at(preposition: str, location: str) -> Prepositional | Abroad:
    if location in COUNTRIES:
        return Abroad(PREPOSITIONS[preposition], COUNTRIES[location])
    return Prepositional(PREPOSITIONS[preposition], n(location))


def c(
    subject: str | Nominal,
    verb: str,
    direct: str | Nominal | None = None,
    tense: Tense = PRESENT,
    negation: Word | None = None,
    *,
    to: str | Nominal | None = None,
    often: str | None = None,
    modal: str | None = None,
    where: Prepositional | Abroad | None = None,
    time: str | None = None,
    first: bool = False,
) -> Clause:
    """Build a clause; `to` is the object with à or de."""
    return Clause(
        n(subject) if isinstance(subject, str) else subject,
        {**VERBS, "be": BE, "there be": THERE_BE, **_REPORTING}[verb],
        tense,
        negation,
        FREQUENCIES[often] if often else None,
        MODALS[modal] if modal else None,
        n(direct) if isinstance(direct, str) else direct,
        n(to) if isinstance(to, str) else to,
        adjuncts=(where,) if where else (),
        time=TIMES[time] if time else None,
        time_first=first,
    )


_REPORTING = {f"{name} that": verb for name, verb in REPORTING.items()}


def q(
    subject: str | Nominal,
    adjective: str,
    tense: Tense = PRESENT,
    negation: Word | None = None,
    *,
    degree: str | None = None,
    verb: Verb = BE,
    often: str | None = None,
) -> Clause:
    """Build a clause with a predicate adjective."""
    return Clause(
        n(subject) if isinstance(subject, str) else subject,
        verb,
        tense,
        negation,
        FREQUENCIES[often] if often else None,
        complement=Quality(ADJECTIVES[adjective], DEGREES[degree] if degree else None),
    )


def compared(subject: str, grade: Word, adjective: str, standard: str, tense: Tense = PRESENT) -> Clause:
    return Clause(n(subject), BE, tense, complement=Comparison(ADJECTIVES[adjective], grade, n(standard)))


def trade(subject: str, name: str, tense: Tense = PRESENT, negation: Word | None = None) -> Clause:
    return Clause(n(subject), BE, tense, negation, complement=Trade(TRADES[name]))


def age(subject: str, years: str, tense: Tense = PRESENT) -> Clause:
    return Clause(n(subject), HAVE_YEARS, tense, complement=Age(NUMBERS[years]))


def ask(clause: Clause, front: Word | NounPhrase | None = None, *, short: bool = False) -> Sentence:
    return Sentence(clause, Question(front, of_subject=clause.subject is words.WHO, short=short))


def two(first: Clause, link: lexicon.Link, second: Clause) -> Sentence:
    return Sentence(first, link=link, second=second)


def call(address: str, clause: Clause, *, ask: bool = False) -> Sentence:
    return Sentence(clause, Question() if ask else None, ADDRESSES[address])


A_MAN_SINGS = c(gap("man"), "sing")

CASES: list[tuple[Clause | Sentence, str, str]] = [
    # ---- articles, gender, number, plurals
    (c("Paul", "buy", "the apple"), "Paul buys the apple.", "Paul achète la pomme."),
    (c("Paul", "buy", "the apples"), "Paul buys the apples.", "Paul achète les pommes."),
    (c("Anna", "see", "the owl"), "Anna sees the owl.", "Anna voit le hibou."),
    (c("Anna", "see", "the owls"), "Anna sees the owls.", "Anna voit les hiboux."),
    (c("we", "see", "the horses"), "We see the horses.", "Nous voyons les chevaux."),
    (c("I", "see", "the bears"), "I see the bears.", "Je vois les ours."),
    (c("they", "draw", "a goose"), "They draw a goose.", "Ils dessinent une oie."),
    (c("he", "draw", "an owl"), "He draws an owl.", "Il dessine un hibou."),
    (c("she", "draw", "some mice"), "She draws some mice.", "Elle dessine des souris."),
    (c("I", "find", "the knives"), "I find the knives.", "Je trouve les couteaux."),
    (c("I", "find", "the jewels"), "I find the jewels.", "Je trouve les bijoux."),
    (c("she", "begin", "the games"), "She begins the games.", "Elle commence les jeux."),
    (c("he", "take", "the newspapers"), "He takes the newspapers.", "Il prend les journaux."),
    (c("he", "visit", "the hospitals"), "He visits the hospitals.", "Il visite les hôpitaux."),
    (c("my grandmothers", "sing"), "My grandmothers sing.", "Mes grands-mères chantent."),
    (c("the hero", "arrive"), "The hero arrives.", "Le héros arrive."),
    (c("this hero", "arrive"), "This hero arrives.", "Ce héros arrive."),
    (c("she", "eat", "some potatoes"), "She eats some potatoes.", "Elle mange des pommes de terre."),
    (c("I", "drink", "some water"), "I drink some water.", "Je bois de l'eau."),
    (c("I", "drink", "some milk"), "I drink some milk.", "Je bois du lait."),
    (c("we", "drink", "some beer"), "We drink some beer.", "Nous buvons de la bière."),
    (c("we", "find", "some money"), "We find some money.", "Nous trouvons de l'argent."),
    (c("Paul", "love", "cats"), "Paul loves cats.", "Paul aime les chats."),
    (c("Paul", "love", "honey"), "Paul loves honey.", "Paul aime le miel."),
    (c("they", "hate", "onions"), "They hate onions.", "Ils détestent les oignons."),
    # ---- determiners that depend on the next sound
    (c("I", "know", "this man"), "I know this man.", "Je connais cet homme."),
    (c("I", "know", "this woman"), "I know this woman.", "Je connais cette femme."),
    (c("I", "know", "these men"), "I know these men.", "Je connais ces hommes."),
    (c("she", "look for", "her scarf"), "She looks for her scarf.", "Elle cherche son écharpe."),
    (c("she", "look for", "her old scarf"), "She looks for her old scarf.",
     "Elle cherche sa vieille écharpe."),
    (c("he", "find", "my axe"), "He finds my axe.", "Il trouve ma hache."),
    (c("we", "find", "his clock"), "We find his clock.", "Nous trouvons son horloge."),
    (c("we", "find", "his clocks"), "We find his clocks.", "Nous trouvons ses horloges."),
    (c("they", "find", "their keys"), "They find their keys.", "Ils trouvent leurs clés."),
    (c("they", "find", "our key"), "They find our key.", "Ils trouvent notre clé."),
    (c("my friend", "come"), "My friend comes.", "Mon ami vient."),
    # ---- adjectives
    (c("Anna", "wear", "a white dress"), "Anna wears a white dress.", "Anna porte une robe blanche."),
    (c("Anna", "wear", "some white gloves"), "Anna wears some white gloves.", "Anna porte des gants blancs."),
    (c("he", "buy", "an old tree"), "He buys an old tree.", "Il achète un vieil arbre."),
    (c("he", "buy", "an old clock"), "He buys an old clock.", "Il achète une vieille horloge."),
    (c("he", "buy", "some old clocks"), "He buys some old clocks.", "Il achète de vieilles horloges."),
    (c("he", "see", "the old man"), "He sees the old man.", "Il voit le vieil homme."),
    (c("he", "see", "the old men"), "He sees the old men.", "Il voit les vieux hommes."),
    (c("he", "see", "the old hero"), "He sees the old hero.", "Il voit le vieux héros."),
    (c("she", "see", "a beautiful bird"), "She sees a beautiful bird.", "Elle voit un bel oiseau."),
    (c("she", "see", "some beautiful birds"), "She sees some beautiful birds.",
     "Elle voit de beaux oiseaux."),
    (c("she", "see", "this beautiful child"), "She sees this beautiful child.", "Elle voit ce bel enfant."),
    (c("I", "want", "a new computer"), "I want a new computer.", "Je veux un nouvel ordinateur."),
    (c("I", "want", "the new cars"), "I want the new cars.", "Je veux les nouvelles voitures."),
    (c("I", "want", "the new toys"), "I want the new toys.", "Je veux les nouveaux jouets."),
    (c("we", "know", "an honest man"), "We know an honest man.", "Nous connaissons un homme honnête."),
    (c("we", "need", to="a useful key"), "We need a useful key.", "Nous avons besoin d'une clé utile."),
    (c("she", "write", "a long letter"), "She writes a long letter.", "Elle écrit une longue lettre."),
    (c("she", "buy", "a big red car"), "She buys a big red car.", "Elle achète une grande voiture rouge."),
    (c("I", "buy", "some fresh eggs"), "I buy some fresh eggs.", "J'achète des œufs frais."),
    (c("I", "buy", "some fresh strawberries"), "I buy some fresh strawberries.",
     "J'achète des fraises fraîches."),
    (c("he", "know", "the loyal friends"), "He knows the loyal friends.", "Il connaît les amis loyaux."),
    (c("he", "open", "the secret door"), "He opens the secret door.", "Il ouvre la porte secrète."),
    (c("the Italian tourists", "come"), "The Italian tourists come.", "Les touristes italiens viennent."),
    (q("the actress", "jealous"), "The actress is jealous.", "L'actrice est jalouse."),
    (q("my sisters", "proud"), "My sisters are proud.", "Mes sœurs sont fières."),
    (q("Anna", "kind", degree="very"), "Anna is very kind.", "Anna est très gentille."),
    (q("the shoes", "expensive", degree="too"), "The shoes are too expensive.",
     "Les chaussures sont trop chères."),
    (q("the stories", "original"), "The stories are original.", "Les histoires sont originales."),
    (q("Paul and Anna", "happy"), "Paul and Anna are happy.", "Paul et Anna sont heureux."),
    (q("Anna and my sister", "happy"), "Anna and my sister are happy.", "Anna et ma sœur sont heureuses."),
    (q("we", "tired"), "We are tired.", "Nous sommes fatigués."),
    (q("I", "ready", FUTURE), "I will be ready.", "Je serai prêt."),
    (q("she", "sad", PAST), "She was sad.", "Elle était triste."),
    (q("they", "active", PAST, NO_LONGER), "They were no longer active.", "Ils n'étaient plus actifs."),
    (q("she", "rich", PAST, verb=BECOME), "She became rich.", "Elle est devenue riche."),
    (q("the girls", "serious", verb=SEEM), "The girls seem serious.", "Les filles semblent sérieuses."),
    # ---- numbers and quantities
    (c("he", "eat", "two apples"), "He eats two apples.", "Il mange deux pommes."),
    (c("he", "buy", "twenty-one plates"), "He buys twenty-one plates.", "Il achète vingt et une assiettes."),
    (c("he", "buy", "twenty-one books"), "He buys twenty-one books.", "Il achète vingt et un livres."),
    (c("I", "know", "the eleven men"), "I know the eleven men.", "Je connais les onze hommes."),
    (c("I", "dream of", to="eleven horses"), "I dream of eleven horses.", "Je rêve de onze chevaux."),
    (c("she", "have", "many friends"), "She has many friends.", "Elle a beaucoup d'amis."),
    (c("several nurses", "work"), "Several nurses work.", "Plusieurs infirmières travaillent."),
    (c("all girls", "dance"), "All the girls dance.",
     "Toutes les filles dansent."),
    (c("all boys", "dance"), "All the boys dance.", "Tous les garçons dansent."),
    (age("my brother", "eight"), "My brother is eight years old.", "Mon frère a huit ans."),
    (age("she", "twenty-one", FUTURE), "She will be twenty-one years old.", "Elle aura vingt et un ans."),
    # ---- elision and contraction
    (c("I", "love", "Alice"), "I love Alice.", "J'aime Alice."),
    (c("the child", "sleep"), "The child sleeps.", "L'enfant dort."),
    (c("the spider", "sleep"), "The spider sleeps.", "L'araignée dort."),
    (c("he", "talk to", to="the king"), "He talks to the king.", "Il parle au roi."),
    (c("he", "talk to", to="the queen"), "He talks to the queen.", "Il parle à la reine."),
    (c("he", "talk to", to="the artist"), "He talks to the artist.", "Il parle à l'artiste."),
    (c("he", "talk to", to="the soldiers"), "He talks to the soldiers.", "Il parle aux soldats."),
    (c("he", "talk to", to="the hero"), "He talks to the hero.", "Il parle au héros."),
    (c("he", "talk about", to="the film"), "He talks about the film.", "Il parle du film."),
    (c("he", "talk about", to="the films"), "He talks about the films.", "Il parle des films."),
    (c("he", "talk about", to="the story"), "He talks about the story.", "Il parle de l'histoire."),
    (c("he", "talk about", to="Anna"), "He talks about Anna.", "Il parle d'Anna."),
    (c("I", "need", to="some money"), "I need some money.", "J'ai besoin d'argent."),
    (c("I", "need", to="the car"), "I need the car.", "J'ai besoin de la voiture."),
    (c("I", "be afraid of", to="dogs"), "I am afraid of dogs.", "J'ai peur des chiens."),
    (c("Marie", "take", "Paul's car"), "Marie takes Paul's car.", "Marie prend la voiture de Paul."),
    (c("Marie", "take", "Alice's old hat"), "Marie takes Alice's old hat.",
     "Marie prend le vieux chapeau d'Alice."),
    (c("Marie", "see", "the king's castle"), "Marie sees the king's castle.",
     "Marie voit le château du roi."),
    (c("Marie", "see", "the princess's horses"), "Marie sees the princess's horses.",
     "Marie voit les chevaux de la princesse."),
    (c("I", "work", where=at("in front of", "the station")), "I work in front of the station.",
     "Je travaille devant la gare."),
    (c("I", "wait", where=at("near", "the bridge")), "I wait near the bridge.", "J'attends près du pont."),
    (c("I", "wait", where=at("next to", "the church")), "I wait next to the church.",
     "J'attends à côté de l'église."),
    (c("she", "go", where=at("to", "the market")), "She goes to the market.", "Elle va au marché."),
    (c("she", "go", where=at("to", "Japan")), "She goes to Japan.", "Elle va au Japon."),
    (c("she", "go", where=at("to", "Italy"), tense=PAST), "She went to Italy.", "Elle est allée en Italie."),
    (c("she", "live", where=at("in", "the United States")), "She lives in the United States.",
     "Elle habite aux États-Unis."),
    (c("they", "live", where=at("in", "Athens"), tense=PAST), "They lived in Athens.",
     "Ils habitaient à Athènes."),
    (c("we", "come back", where=at("from", "Canada"), tense=FUTURE), "We will come back from Canada.",
     "Nous reviendrons du Canada."),
    (c("we", "come back", where=at("from", "Spain"), tense=PAST), "We came back from Spain.",
     "Nous sommes revenus d'Espagne."),
    (c("he", "come back", where=at("from", "the hotel")), "He comes back from the hotel.",
     "Il revient de l'hôtel."),
    (c("he", "stay", where=at("at", "the hospital"), tense=PAST), "He stayed at the hospital.",
     "Il est resté à l'hôpital."),
    # ---- negation
    (c("I", "love", "the beer", PRESENT, NOT), "I do not love the beer.", "Je n'aime pas la bière."),
    (c("she", "have", "any car", PRESENT, NOT), "She does not have a car.", "Elle n'a pas de voiture."),
    (c("she", "have", "any friends", PRESENT, NOT), "She does not have any friends.", "Elle n'a pas d'amis."),
    (c("he", "drink", "any water", PAST, NOT), "He did not drink any water.", "Il n'a pas bu d'eau."),
    (c("he", "buy", "any house", PAST, NEVER), "He never bought a house.", "Il n'a jamais acheté de maison."),
    (c("we", "work", negation=NO_LONGER), "We no longer work.", "Nous ne travaillons plus."),
    (c("we", "sing", tense=FUTURE, negation=NO_LONGER), "We will no longer sing.",
     "Nous ne chanterons plus."),
    (c("Anna", "arrive", tense=PAST, negation=NOT), "Anna did not arrive.", "Anna n'est pas arrivée."),
    (c("the boy", "obey", to="Anna", negation=NEVER), "The boy never obeys Anna.",
     "Le garçon n'obéit jamais à Anna."),
    (c("there", "there be", "no cat", PRESENT, NO_VERB, where=at("in", "the garden")),
     "There is no cat in the garden.", "Il n'y a pas de chat dans le jardin."),
    (c("there", "there be", "no trees", PAST, NO_VERB, where=at("in", "the street")),
     "There were no trees in the street.", "Il n'y avait pas d'arbres dans la rue."),
    (c("there", "there be", "three cats", where=at("under", "the table")),
     "There are three cats under the table.", "Il y a trois chats sous la table."),
    (c("there", "there be", "an egg", FUTURE, where=at("on", "the chair")),
     "There will be an egg on the chair.", "Il y aura un œuf sur la chaise."),
    # ---- tenses
    (c("we", "eat", "the cheese"), "We eat the cheese.", "Nous mangeons le fromage."),
    (c("we", "begin", "the lesson"), "We begin the lesson.", "Nous commençons la leçon."),
    (c("they", "throw", "the ball"), "They throw the ball.", "Ils jettent la balle."),
    (c("I", "call", "Marie"), "I call Marie.", "J'appelle Marie."),
    (c("I", "call", "Marie", FUTURE), "I will call Marie.", "J'appellerai Marie."),
    (c("she", "clean", "the kitchen"), "She cleans the kitchen.", "Elle nettoie la cuisine."),
    (c("she", "clean", "the kitchen", FUTURE), "She will clean the kitchen.", "Elle nettoiera la cuisine."),
    (c("he", "send", "a letter", FUTURE, to="Anna"), "He will send a letter to Anna.",
     "Il enverra une lettre à Anna."),
    (c("they", "paint", "the door"), "They paint the door.", "Ils peignent la porte."),
    (c("they", "receive", "a gift"), "They receive a gift.", "Ils reçoivent un cadeau."),
    (c("she", "prefer", "the tea", FUTURE), "She will prefer the tea.", "Elle préférera le thé."),
    (c("he", "see", "the river", FUTURE),
     "He will see the river.", "Il verra la rivière."),
    (c("they", "run", tense=FUTURE), "They will run.", "Ils courront."),
    (c("I", "go", where=at("to", "the school"), tense=FUTURE), "I will go to the school.",
     "J'irai à l'école."),
    (c("they", "open", "the box", PAST), "They opened the box.", "Ils ont ouvert la boîte."),
    (c("he", "understand", "the question", PAST), "He understood the question.", "Il a compris la question."),
    (c("she", "know", "the queen", PAST), "She knew the queen.", "Elle connaissait la reine."),
    (c("I", "be hungry", tense=PAST), "I was hungry.", "J'avais faim."),
    (c("Anna", "leave", tense=PAST), "Anna left.", "Anna est partie."),
    (c("the girls", "leave", tense=PAST), "The girls left.", "Les filles sont parties."),
    (c("Paul and Anna", "leave", tense=PAST), "Paul and Anna left.", "Paul et Anna sont partis."),
    (c("my aunt", "get up", tense=PAST), "My aunt got up.", "Ma tante s'est levée."),
    (c("we", "get dressed"), "We get dressed.", "Nous nous habillons."),
    (c("I", "get dressed"), "I get dressed.", "Je m'habille."),
    (c("the women", "have fun", tense=PAST, negation=NOT), "The women did not have fun.",
     "Les femmes ne se sont pas amusées."),
    (c("she", "go for a walk", tense=FUTURE), "She will go for a walk.", "Elle se promènera."),
    (c("Alice", "remember", tense=PAST, to="the city"), "Alice remembered the city.",
     "Alice s'est souvenue de la ville."),
    # ---- times and frequency
    (c("he", "eat", "some bread", time="now"), "He is eating some bread now.",
     "Il mange du pain maintenant."),
    (c("they", "swim", time="now", negation=NOT), "They are not swimming now.",
     "Ils ne nagent pas maintenant."),
    (c("he", "have", "a dog", time="now"), "He has a dog now.", "Il a un chien maintenant."),
    (c("he", "fall", tense=PAST, time="two days ago"), "He fell two days ago.",
     "Il est tombé il y a deux jours."),
    (c("she", "dance", tense=FUTURE, time="next year", first=True), "Next year, she will dance.",
     "L'année prochaine, elle dansera."),
    (c("I", "play tennis", time="on Sundays"), "I play tennis on Sundays.", "Je joue au tennis le dimanche."),
    (c("she", "lose", "her gloves", PAST, often="often"), "She often lost her gloves.",
     "Elle a souvent perdu ses gants."),
    (q("he", "lazy", often="always"), "He is always lazy.", "Il est toujours paresseux."),
    # ---- clitics and the agreement of the participle
    (c("Paul", "see", "she"), "Paul sees her.", "Paul la voit."),
    (c("Paul", "see", "she", PAST), "Paul saw her.", "Paul l'a vue."),
    (c("Paul", "see", "they", PAST), "Paul saw them.", "Paul les a vus."),
    (c("Paul", "help", "we", PAST), "Paul helped us.", "Paul nous a aidés."),
    (c("Paul", "help", "I", PAST, NOT), "Paul did not help me.", "Paul ne m'a pas aidé."),
    (c("I", "answer", to="she", tense=PAST), "I answered her.", "Je lui ai répondu."),
    (c("I", "phone", to="they", tense=FUTURE), "I will phone them.", "Je leur téléphonerai."),
    (c("he", "give", "the keys", PAST, to="I"), "He gave the keys to me.", "Il m'a donné les clés."),
    (c("he", "give", "it (f)", PAST, to="she"), "He gave it to her.", "Il la lui a donnée."),
    (c("he", "give", "they (f)", PAST, to="we"), "He gave them to us.", "Il nous les a données."),
    (c("she", "lend", "it", FUTURE, NOT, to="they"), "She will not lend it to them.",
     "Elle ne le leur prêtera pas."),
    (c("Anna", "sing", where=Prepositional(words.WITH, words.THEY)), "Anna sings with them.",
     "Anna chante avec eux."),
    # ---- modals
    (c("Paul", "invite", "she", modal="want to"), "Paul wants to invite her.", "Paul veut l'inviter."),
    (c("we", "rest", modal="want to", negation=NOT), "We do not want to rest.",
     "Nous ne voulons pas nous reposer."),
    (c("they", "swim", modal="can", negation=NOT), "They cannot swim.", "Ils ne peuvent pas nager."),
    (c("I", "finish", "the exercise", modal="must"), "I must finish the exercise.",
     "Je dois finir l'exercice."),
    (c("he", "buy", "any bread", negation=NOT, modal="want to"), "He does not want to buy any bread.",
     "Il ne veut pas acheter de pain."),
    # ---- comparisons, trades
    (compared("Anna", MORE, "old", "Paul"), "Anna is older than Paul.", "Anna est plus vieille que Paul."),
    (compared("Paul", LESS, "brave", "Alice"), "Paul is less brave than Alice.",
     "Paul est moins courageux qu'Alice."),
    (compared("the girls", AS, "strong", "he"), "The girls are as strong as him.",
     "Les filles sont aussi fortes que lui."),
    (compared("the soup", MORE, "good", "the meat", PAST), "The soup was better than the meat.",
     "La soupe était meilleure que la viande."),
    (compared("the apples", AS, "good", "the pears"), "The apples are as good as the pears.",
     "Les pommes sont aussi bonnes que les poires."),
    (trade("she", "baker"), "She is a baker.", "Elle est boulangère."),
    (trade("my brothers", "singer", FUTURE), "My brothers will be singers.", "Mes frères seront chanteurs."),
    (trade("Marie", "teacher", PRESENT, NOT), "Marie is not a teacher.", "Marie n'est pas professeure."),
    # ---- questions
    (ask(c("Anna", "love", "the film")), "Does Anna love the film?", "Est-ce qu'Anna aime le film ?"),
    (ask(c("they", "leave", tense=PAST)), "Did they leave?", "Est-ce qu'ils sont partis ?"),
    (ask(q("the cake", "delicious")), "Is the cake delicious?", "Est-ce que le gâteau est délicieux ?"),
    (ask(c("Paul", "work", time="now")), "Is Paul working now?", "Est-ce que Paul travaille maintenant ?"),
    (ask(c("the key", "be"), words.WHERE, short=True), "Where is the key?", "Où est la clé ?"),
    (ask(c("she", "live"), words.WHERE), "Where does she live?", "Où est-ce qu'elle habite ?"),
    (ask(c("the train", "arrive", tense=FUTURE), words.WHEN_ASKED), "When will the train arrive?",
     "Quand est-ce que le train arrivera ?"),
    (ask(c("he", "cry", tense=PAST), words.WHY), "Why did he cry?", "Pourquoi est-ce qu'il a pleuré ?"),
    (ask(c("who", "break", "the window", PAST)), "Who broke the window?", "Qui a cassé la fenêtre ?"),
    (ask(c("who", "leave", tense=PAST)), "Who left?", "Qui est parti ?"),
    (ask(c("Alice", "buy", tense=PAST), words.WHAT), "What did Alice buy?", "Qu'est-ce qu'Alice a acheté ?"),
    (ask(c("Paul", "invite", tense=PAST), words.WHOM), "Who did Paul invite?",
     "Qui est-ce que Paul a invité ?"),
    (ask(c("he", "buy", gap("skirt"), PAST), asked("which skirt")), "Which skirt did he buy?",
     "Quelle jupe est-ce qu'il a achetée ?"),
    (ask(c("he", "eat", gap("pears"), PAST), asked("how-many pears")), "How many pears did he eat?",
     "Combien de poires est-ce qu'il a mangées ?"),
    # ---- addresses
    (call("Anna", q("you Anna", "tired")), "Anna, you are tired.", "Anna, tu es fatiguée."),
    (call("Sir", q("you Sir", "kind")), "Sir, you are kind.", "Monsieur, vous êtes gentil."),
    (call("Girls", c("you Girls", "arrive", tense=PAST)), "Girls, you arrived.",
     "Les filles, vous êtes arrivées."),
    (call("Madam", c("I", "see", "you Madam", PAST)), "Madam, I saw you.", "Madame, je vous ai vue."),
    (call("My friends", c("I", "see", "you My friends", PAST)), "My friends, I saw you.",
     "Mes amis, je vous ai vus."),
    (call("Paul", c("you Paul", "lose", "your-tu scarf", PAST), ask=True), "Paul, did you lose your scarf?",
     "Paul, est-ce que tu as perdu ton écharpe ?"),
    (call("Children", c("you Children", "rest", modal="must")), "Children, you must rest.",
     "Les enfants, vous devez vous reposer."),
    (call("Madam", c("Paul", "find", "your-vous keys", PAST)), "Madam, Paul found your keys.",
     "Madame, Paul a trouvé vos clés."),
    # ---- relatives
    (c(n("the man", A_MAN_SINGS), "know", "Anna"), "The man who sings knows Anna.",
     "L'homme qui chante connaît Anna."),
    (q(n("the car", c("Paul", "buy", gap("car"), PAST)), "red"), "The car that Paul bought is red.",
     "La voiture que Paul a achetée est rouge."),
    (q(n("the flowers", c("Alice", "receive", gap("flowers"), PAST)), "beautiful"),
     "The flowers that Alice received are beautiful.", "Les fleurs qu'Alice a reçues sont belles."),
    (q(n("the dog", c("I", "be afraid of", to=gap("dog"))), "black"), "The dog that I am afraid of is black.",
     "Le chien dont j'ai peur est noir."),
    (q(n("the woman", c("he", "answer", to=gap("woman"), tense=PAST)), "sad", PAST),
     "The woman that he answered was sad.", "La femme à qui il a répondu était triste."),
    (c("we", "see", n("the birds", c(gap("birds"), "sing"))), "We see the birds that sing.",
     "Nous voyons les oiseaux qui chantent."),
    (c("I", "meet", n("the nurses", c(gap("nurses"), "leave", tense=PAST)), PAST),
     "I met the nurses who left.", "J'ai rencontré les infirmières qui sont parties."),
    # ---- two clauses
    (two(q("the house", "old"), words.BUT, q("it (f)", "beautiful")),
     "The house is old, but it is beautiful.",
     "La maison est vieille, mais elle est belle."),
    (two(c("Paul", "buy", "the apples", PAST), words.BECAUSE, q("they (f)", "red", PAST)),
     "Paul bought the apples because they were red.",
     "Paul a acheté les pommes parce qu'elles étaient rouges."),
    (two(c("Paul", "buy", "a dress", PAST), words.AND, c("he", "give", "it (f)", PAST, to="Anna")),
     "Paul bought a dress and he gave it to Anna.", "Paul a acheté une robe et il l'a donnée à Anna."),
    (two(c("Anna", "say that"), words.THAT, q("Alice", "sick")), "Anna says that Alice is sick.",
     "Anna dit qu'Alice est malade."),
    (two(c("we", "hope that"), words.THAT, c("he", "come", tense=FUTURE)), "We hope that he will come.",
     "Nous espérons qu'il viendra."),
    (two(c("Anna", "sing", tense=FUTURE), words.IF, c("he", "come")), "Anna will sing if he comes.",
     "Anna chantera s'il vient."),
    (two(c("Anna", "sing", tense=FUTURE), words.IF, c("she", "come")), "Anna will sing if she comes.",
     "Anna chantera si elle vient."),
    (two(c("Anna", "leave", tense=FUTURE), words.WHEN, c("Paul", "arrive", tense=FUTURE)),
     "Anna will leave when Paul arrives.", "Anna partira quand Paul arrivera."),
]  # fmt: skip


@pytest.mark.parametrize(("derivation", "source", "target"), CASES, ids=[case[1] for case in CASES])
def test_hand_written(derivation: Clause | Sentence, source: str, target: str) -> None:
    sentence = Sentence(derivation) if isinstance(derivation, Clause) else derivation
    assert english.spell(sentence) == source
    assert french.spell(sentence) == target


def test_enough_is_written_by_hand() -> None:
    assert len({source for _, source, _ in CASES}) >= 150
