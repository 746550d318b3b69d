"""What the lines say: words, numbers and a little punctuation, drawn at random."""

from __future__ import annotations

import string

import numpy as np

Rng = np.random.Generator

#: Every letter turns up in these; a fifth of them is held out.
EVERYDAY = """
about above acre after again agree almost along always amber anchor angle answer apple april arch around artist autumn
axis azure bacon badge baker balance banjo basin beach became before begin below berry beyond bicycle birch black
blanket blaze blizzard bloom board boat border bottle branch brave bread breeze brick bridge brief bright bring broken
brook brown bubble bucket build butter cabin cable camera candle canvas carbon careful carpet carry castle catch cause
cellar chalk change charm check cherry choose circle clay clear climb clock cloud clover coast cobalt coffee collar
comet common copper coral corner cotton could count county cousin cover craft cream creek crisp cross crowd crystal
curve cycle daily dance danger daring dawn decade deer delay depth desert detail dinner distance dizzy doctor donkey
double dozen draft dragon drawer dream drift drum dusk eagle early earth east edge effort eight either elbow eleven
engine enjoy enough equal even evening every exact expect extra fabric falcon family farm fast father feather fence
fern fiddle field fifty figure finish first flame flax fleet float flour flower fog follow forest fork forty found fox
fresh friend frost fruit full funny future galaxy gallon garden garlic gather gentle giant ginger glass globe glove
gold grain grape grass gravel green grow guess guitar habit half hammer handle happy harbor harvest hazel heavy hedge
height hello hidden high hill hollow honest honey horizon horse hotel house hundred hungry hurry husk iceberg idea
inch indigo ink inside island ivory jacket jaguar jam jar jasmine jelly jewel join joke journey judge juice july jump
jungle keen keep kettle key kind king kitchen kite knee knife knock knot ladder lake lamp language lantern large later
laugh lazy leaf learn lemon letter level light lilac lily linen little lizard local lumber lunch magnet maize map
maple marble march market marsh maybe meadow measure melody merry metal method middle mild mile mill minute mirror mix
moment money moon morning moss motor mountain mouse music myth napkin narrow native near needle nephew never night
nine noble noise north notice number oak object ocean october offer often olive onion only open orange orbit order
other otter oven owl oxen oxygen packet paddle page paint palace paper parrot past patch path peach peak pearl pebble
pencil people pepper photo piano picnic pilot pine pixel plain planet plaza plenty plum pocket poem point pony poppy
possible potato prairie press prize proof proud puddle purple puzzle quail quarry quart queen quick quiet quilt quite
quiz rabbit radio rain ranch rapid raven razor ready reason recipe red relax reply rest ribbon rice ridge right river
road robin rocket roof room rope rough round royal rubber rust saddle safety salmon salt sand sapphire saturn scarf
school seven shadow shallow shape shelf shell ship shore short shovel signal silk silver simple sister sixty sketch
sky sleep slow small smoke smooth snow soap soft solid song south sparrow speak spice spoon spring square squirrel
stable star station steam stone storm straw street string strong study sugar summer sunset swan sweet swift symbol
table tailor talk tall taxi temple tent thank thimble thing think third thread three thunder ticket tiger timber tiny
tomato topaz total toward tower travel treat tree triple trout trunk tulip tunnel turtle twelve twenty twist umbrella
uncle under until upper useful valley vapor velvet very vessel village violet violin visit vivid voice volcano wagon
wait walnut waltz warm water wax weather week west whale wheat wheel where whisper white wide willow window winter
wolf wonder wood wool world wrench wrist yacht yard yarn year yellow yesterday yonder young zebra zero zigzag zinc
zone zoom
"""
WORDS = EVERYDAY.split()

#: All that a line can hold; class 0 is the blank, and class i + 1 the i-th of these.
ALPHABET = " " + string.digits + string.ascii_uppercase + string.ascii_lowercase + ".,-!?"


def split(words: list[str] = WORDS) -> tuple[list[str], list[str]]:
    """(words to train on, words held out: every fifth of them, in an order that is always the same)."""
    order = np.random.default_rng(len(words)).permutation(len(words))
    return [words[i] for i in sorted(order[len(words) // 5 :])], [words[i] for i in sorted(order[: len(words) // 5])]


def make_text(words: list[str], rng: Rng, most: int) -> str:
    """One to `most` words and numbers."""
    return " ".join(make_word(words, rng) for _ in range(rng.integers(1, most + 1)))


def make_word(words: list[str], rng: Rng) -> str:
    kind, end = rng.random(2)
    if kind < 0.15:
        word = str(rng.integers(10 ** rng.integers(1, 6)))
    else:
        word = words[rng.integers(len(words))]
        if kind < 0.22:
            word += "-" + words[rng.integers(len(words))]
        elif kind < 0.45:
            word = word.capitalize()
        elif kind < 0.55:
            word = word.upper()
    return word + (".,!?"[rng.integers(4)] if end < 0.2 else "")
