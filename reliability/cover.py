"""Program that fuzzes one kind of file with atheris; arguments: TRAINED KIND COUNT SEED.

It writes one line of JSON per try to `outcomes`. It is a separate program because atheris must instrument
the imports of the package.
"""

import json
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["glassformer"]):
    from reliability.loaders import Specimens, limit_memory


def main(trained: str, kind: str, count: str, seed: str) -> None:
    specimens = Specimens(trained)
    limit_memory()
    name = sorted(specimens.all)[int(kind) % len(specimens.all)]
    corpus = Path("corpus")
    corpus.mkdir()
    (corpus / "good").write_bytes(specimens.all[name][2])
    outcomes = open("outcomes", "w", buffering=1)  # noqa: SIM115  open until the fuzzer ends the process

    def test(data: bytes) -> None:
        outcomes.write(json.dumps(specimens.check(name, data)) + "\n")

    largest = max(4096, 2 * len(specimens.all[name][2]))
    limits = [f"-runs={count}", f"-seed={seed}", f"-max_len={largest}", "-rss_limit_mb=0", "-timeout=0"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], test)
    atheris.Fuzz()


main(*sys.argv[1:])
