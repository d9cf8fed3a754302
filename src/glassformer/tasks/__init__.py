"""Tasks, one file each. Importing this package registers every kind.

A task states its task type, from which a fitting model is built. It does not depend on training or run
folders.
"""

from glassformer.tasks import arithmetic as arithmetic
from glassformer.tasks import classification as classification
from glassformer.tasks import language as language
from glassformer.tasks import random_tokens as random_tokens
from glassformer.tasks import rest_of_text as rest_of_text
from glassformer.tasks import sequences as sequences
from glassformer.tasks import tokens as tokens
from glassformer.tasks import translation as translation
