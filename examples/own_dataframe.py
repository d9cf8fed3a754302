"""Train a classifier on two columns of a DataFrame, then predict for new rows.

pandas is used here; columns of polars, NumPy arrays and lists work the same.
"""

import random
import tempfile
from pathlib import Path

import pandas as pd

import glassformer as gf


def weather_reports(count: int) -> pd.DataFrame:
    """Invent reports whose mood depends on two words."""
    rng = random.Random(0)
    rows = []
    for _ in range(count):
        sky, wind = rng.choice(["blue", "grey"]), rng.choice(["calm", "stormy"])
        text = f"the sky over {rng.choice(['Paris', 'Oslo', 'Lima'])} is {sky} and the sea is {wind}"
        rows.append({"report": text, "mood": "good" if (sky, wind) == ("blue", "calm") else "bad"})
    return pd.DataFrame(rows)


def main() -> None:
    frame = weather_reports(2000)
    with tempfile.TemporaryDirectory() as folder:
        run = gf.train(
            inputs=frame["report"],
            targets=frame["mood"],
            overrides={"training.max_steps": 120, "training.max_epochs": None, "model.hidden_dim": 32},
            run=Path(folder) / "weather",
        )
        print(run)
        print(run.evaluate("validation")["metrics"])
        new = [
            "the sky over Oslo is blue and the sea is calm",
            "the sky over Lima is grey and the sea is calm",
        ]
        for prediction in run.predict(new):
            print(f"{prediction['output']:>5}  {prediction['probability']:.3f}  {prediction['input']}")
        assert [prediction["output"] for prediction in run.predict(new)] == ["good", "bad"]


if __name__ == "__main__":
    main()
