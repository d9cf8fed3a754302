"""What the models that write share: a step of theirs, along one branch of a row or along several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from glassformer.blocks.attention import MultiHeadAttention, fused_kernel
from glassformer.blocks.masks import Mask
from glassformer.blocks.ready import ready
from glassformer.models.base import DecodingState, Model
from glassformer.models.heads import last_real


class Writing(Model):
    """Reads on from a state, and answers with the logits of the next token."""

    _answer: Callable[[Tensor], Tensor] | None = None

    @contextmanager
    def writing_much(self) -> Iterator[None]:
        """Within it the weights must not change: they are made ready once, for products with few rows."""
        with ready(self):
            self._answer = self.head.ready(self.tied_weight())
            try:
                yield
            finally:
                self._answer = None

    def answering(self) -> Callable[[Tensor], Tensor]:
        """The head, made ready for many calls."""
        return self._answer or self.head.ready(self.tied_weight())

    def read_on(self, state: DecodingState, tokens_BL: Tensor, positions_BL: Tensor, mask: Mask) -> Tensor:
        """The hidden vectors of new tokens, which the state keeps."""
        raise NotImplementedError

    def advance(self, state: DecodingState, tokens_BL: Tensor, real_BL: Tensor | None = None) -> Tensor:
        assert state.answer is not None
        x_BLD = self.read_on(state, tokens_BL, *state.place(tokens_BL, real_BL))
        x_BD = x_BLD[:, -1] if real_BL is None else last_real(x_BLD, real_BL)
        return state.answer(x_BD)

    @property
    def can_branch(self) -> bool:
        """Not with a kernel put in from outside: it may count on one query a step."""
        attentions = [module for module in self.modules() if isinstance(module, MultiHeadAttention)]
        return all(attention.kernel is fused_kernel for attention in attentions)

    def branch(self, state: DecodingState, parents_BW: Tensor, tokens_BW: Tensor) -> Tensor:
        assert state.answer is not None
        return state.answer(self.read_on(state, tokens_BW, *state.fork(parents_BW)))
