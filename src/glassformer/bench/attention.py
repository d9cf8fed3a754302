"""Benchmark of four implementations of scaled dot-product attention, which must give the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench.base import Benchmark, Progress, Result, empty_table, time_alternately
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

MAX_DIFFERENCE = 1e-4
"""Maximum absolute difference from the fp64 result. Rounding in fp32 is far below, a wrong mask far above."""

BASELINE = "loop, one sequence"


@register
class AttentionBenchmark(Benchmark):
    """Four implementations of attention: loops over one sequence or a batch, no loop, fused kernel."""

    kind: Literal["attention"] = "attention"
    batch: int = Field(4, ge=1, description="sequences per batch")
    heads: int = Field(4, ge=1, description="attention heads")
    length: int = Field(32, ge=1, description="sequence length: number of queries, and of keys")
    width: int = Field(32, ge=1, description="dimension of each head")
    causal: bool = Field(False, description="apply a causal mask")

    def measure(self, progress: Progress) -> Result:
        import torch

        shape = (self.batch, self.heads, self.length, self.width)
        generator = torch.Generator().manual_seed(0)
        q_BHLK, k_BHLK, v_BHLK = (torch.randn(shape, generator=generator) for _ in range(3))
        forms = self.forms(q_BHLK, k_BHLK, v_BHLK)
        exact_BHLK = self.forms(q_BHLK.double(), k_BHLK.double(), v_BHLK.double())["no loop"]()
        differences = {name: float((form() - exact_BHLK).abs().max()) for name, form in forms.items()}
        timings = time_alternately(forms, self.repeats, progress)
        ratios = {name: timings[BASELINE].median / timing.median for name, timing in timings.items()}
        rows: list[dict[str, Any]] = [
            {
                "form": name,
                **timing.as_row(),
                "speed_up": ratios[name],
                "largest_difference": differences[name],
            }
            for name, timing in timings.items()
        ]
        wrong = [name for name, difference in differences.items() if not difference <= MAX_DIFFERENCE]
        error = f"differs by more than {MAX_DIFFERENCE:g} from fp64: {', '.join(wrong)}" if wrong else ""
        return Result(self.kind, machine(), rows, ratios, error)

    def forms(self, q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor) -> dict[str, Callable[[], Tensor]]:
        """Return each implementation by name, as a call without arguments over all heads and sequences."""
        import torch

        from glassformer.blocks.attention import fused_kernel
        from glassformer.blocks.masks import Mask, causal
        from glassformer.blocks.reference import (
            attention_batch_loops,
            attention_no_loop,
            attention_one_sequence,
        )

        shape = q_BHLK.shape
        mask_LL = causal(self.length, self.length) if self.causal else None
        q_NLK, k_NLK, v_NLK = (x.flatten(0, 1) for x in (q_BHLK, k_BHLK, v_BHLK))  # N: every head

        def one_by_one() -> Tensor:
            heads = [
                attention_one_sequence(q, k, v, mask_LL) for q, k, v in zip(q_NLK, k_NLK, v_NLK, strict=True)
            ]
            return torch.stack(heads).view(shape)

        return {
            BASELINE: one_by_one,
            "loop, batch": lambda: attention_batch_loops(q_NLK, k_NLK, v_NLK, mask_LL).view(shape),
            "no loop": lambda: attention_no_loop(q_BHLK, k_BHLK, v_BHLK, mask_LL),
            "fused": lambda: fused_kernel(q_BHLK, k_BHLK, v_BHLK, Mask(is_causal=self.causal), None, 0.0),
        }

    def show(self, result: Result) -> Table:
        size = f"{self.batch} × {self.heads} heads × length {self.length} × width {self.width}"
        table = empty_table(
            f"attention, {size}{', causal' if self.causal else ''}",
            ["form"],
            ["median ms", "quartiles ms", "speed-up", "difference"],
            caption="difference: largest absolute difference from the same attention in fp64",
        )
        for row in result.rows:
            low, high = row["seconds_quartiles"]
            is_wrong = not row["largest_difference"] <= MAX_DIFFERENCE
            table.add_row(
                row["form"],
                _milliseconds(row["seconds"]),
                f"{_milliseconds(low)} – {_milliseconds(high)}",
                f"{row['speed_up']:,.1f} ×",
                f"{row['largest_difference']:.1e}",
                style="red" if is_wrong else None,
            )
        return table


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"
