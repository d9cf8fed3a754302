"""Does pre-training help to tell good reviews from bad ones? Three studies, each with its control arms.

What each study changes in the presets stands here, and only here.
"""

from __future__ import annotations

from glassformer.studies.pretraining_text import TextPlan, TextSource
from glassformer.studies.transfer_arms import FINE_TUNED, FROZEN, SCRATCH, Options, TransferStudy

# A text's last sentence follows from all that was said before: who reads from left to right must foresee it.
REVIEWS = Options(
    quick_pretraining={"task.examples": 4000, "training.max_epochs": 2},
    arms={
        "model.is_causal": True,
        "model.pooling": {"kind": "last"},
        "training.batch_tokens": None,
        "training.validation_examples": 500,
    },
    by_arm={
        SCRATCH.name: {},
        FROZEN.name: {"training.optimizer.learning_rate": 1e-2},
        FINE_TUNED.name: {"training.optimizer.learning_rate": 5e-4},
    },
    by_labels={
        100: {"training.batch_size": 10, "training.max_epochs": 20, "training.schedule.warmup_steps": 20},
        400: {"training.batch_size": 20, "training.max_epochs": 20, "training.schedule.warmup_steps": 40},
        2000: {"training.batch_size": 50, "training.max_epochs": 10, "training.schedule.warmup_steps": 80},
    },
    quick_arms={"task.examples": 2000, "training.max_epochs": 6, "model.num_layers": 1},
)
# From so few texts small models learn too little of judgement by predicting words (docs/log.md). Which words
# stand together tells more, and takes seconds: the pre-training is that and nothing else.
WORD_VECTORS = {
    "task.data.validation_fraction": 0.02,
    "training.batch_tokens": 4096,
    "training.embedding_init.kind": "co-occurrence",
    "training.max_steps": 0,
    "training.max_epochs": None,
    "model.tied_output": False,
}
BOOKS = Options(
    pretraining=WORD_VECTORS,
    by_arm={
        SCRATCH.name: {},
        FROZEN.name: {"training.optimizer.learning_rate": 2e-3},
        FINE_TUNED.name: {"training.optimizer.learning_rate": 4e-4},
    },
    quick_arms={"training.max_epochs": 2, "model.num_layers": 1, "model.hidden_dim": 32},
)
# A long review thinks the same from beginning to end: half of a vector is which words stand near each other,
# half which stand in the same review.
MOVIES = Options(
    pretraining={**WORD_VECTORS, "training.embedding_init.text_share": 0.5},
    by_arm={
        SCRATCH.name: {},
        FROZEN.name: {"training.optimizer.learning_rate": 2e-3},
        FINE_TUNED.name: {"training.optimizer.learning_rate": 3.5e-4},
    },
    by_labels={
        500: {"training.batch_tokens": 512, "training.max_epochs": 15, "training.schedule.warmup_steps": 50},
        2000: {"training.batch_tokens": 1024, "training.max_epochs": 8},
    },
    quick_arms={"training.max_epochs": 2, "model.hidden_dim": 32},
)

TRANSFER = TransferStudy(
    name="transfer",
    title="Transfer: made reviews with few labels",
    about="Reviews that are made here, whose label no single word gives away. Pre-training reads made texts"
    " of the same world without labels, none of which is a review of the test or validation split.",
    classifier="classification",
    pretraining="language-model",
    labels=(100, 400, 2000),
    options=REVIEWS,
)
TRANSFER_BOOKS = TransferStudy(
    name="transfer-books",
    title="Transfer: French book reviews",
    about="`cls_books_fr`, without the test reviews that also stand in train. Pre-training is vectors of"
    " words, from which words stand together in French sentences and in the text, without labels, of the"
    " reviews of train and validation. The published model had 4 layers, width 200 and 2 heads.",
    classifier="book-reviews",
    pretraining="masked-language-model",
    labels=(400, 1600),
    options=BOOKS,
    text=TextPlan(
        sources=(
            TextSource({"train": "tatoeba_enfr/fra.txt", "format": "tsv", "columns": {"input": 1}}),
            TextSource({"train": "ted_enfr/train.fr"}),
            TextSource({"train": "multi30k/train.fr"}),
        ),
        own_splits=("train", "validation"),
        own_times=6,
    ),
    published={(SCRATCH.name, 1600): 0.75, (FINE_TUNED.name, 1600): 0.80},
    quick_labels=(400,),
)
TRANSFER_MOVIES = TransferStudy(
    name="transfer-movies",
    title="Transfer: sentences of film reviews",
    about="`movie_polarity`, split by sentence. Pre-training reads the long film reviews of `imdb` without"
    " their labels, written in small letters and with signs between spaces, as the sentences are. It is"
    " vectors of words: half of each from which words stand near each other, half from which stand in the"
    " same review.",
    classifier="movie-polarity",
    pretraining="masked-language-model",
    labels=(500, 2000, None),
    options=MOVIES,
    text=TextPlan(
        sources=(
            TextSource(
                {"train": "imdb/train.jsonl.gz", "columns": {"input": "text"}},
                as_polarity=True,
            ),
        ),
        # Words of a single training sentence would share a vector that no other sentence has.
        own_splits=(),
        quick_lines=1000,
    ),
    quick_labels=(500,),
)
