"""CTranslate2, an engine that only writes, with weights of ours in 32-bit floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from glassformer.bench.peers import Sizes
from glassformer.data.tokenizers import BEGIN, END, UNKNOWN


def writer(
    sizes: Sizes,
    ours: dict[str, Tensor],
    positions_LD: Tensor,
    forbidden: Sequence[int],
    threads: int,
    concurrency: int = 1,
) -> Callable[[Sequence[Any], int, int], list[list[int]]]:
    """A call that writes the outputs for rows of tokens, with a beam of a size, so many in a batch.

    Tokens are words to it. Of its batches `concurrency` run side by side, and share the threads.
    """
    import ctranslate2

    words = [str(number) for number in range(sizes.vocabulary)]
    before = torch.get_num_threads()
    with TemporaryDirectory(prefix="glassformer-bench-") as folder:
        _save(Path(folder), sizes, ours, positions_LD, words)
        translator = ctranslate2.Translator(
            folder,
            device="cpu",
            compute_type="float32",
            inter_threads=concurrency,
            intra_threads=threads // concurrency,
        )
    torch.set_num_threads(before)  # it sets those of the whole process

    def write(rows: Sequence[Any], beam: int, batch_size: int) -> list[list[int]]:
        results = translator.translate_batch(
            [[words[token] for token in row] for row in rows],
            max_batch_size=batch_size,
            beam_size=beam,
            max_decoding_length=sizes.max_length,
            min_decoding_length=0,
            suppress_sequences=[[words[token]] for token in forbidden],
            return_scores=False,
        )
        return [[int(word) for word in result.hypotheses[0]] for result in results]

    return write


def _save(
    folder: Path, sizes: Sizes, ours: dict[str, Tensor], positions_LD: Tensor, words: list[str]
) -> None:
    from ctranslate2.specs import TransformerSpec

    spec = TransformerSpec.from_config(sizes.layers, sizes.heads, pre_norm=False)
    spec.config.unk_token, spec.config.eos_token = words[UNKNOWN], words[END]
    spec.config.bos_token = spec.config.decoder_start_token = words[BEGIN]
    spec.config.layer_norm_epsilon = 1e-5
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    table_VD = ours["embedding.vectors.table.weight"].numpy()
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = table_VD
    spec.decoder.projection.weight, spec.decoder.projection.bias = table_VD, ours["head.bias"].numpy()
    for side, part in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        part.position_encodings.encodings = positions_LD.numpy()
        for number, layer in enumerate(part.layer):
            own = f"{side}.layers.{number}"
            maps = {
                f"{own}.attention.query_key_value": layer.self_attention.linear[0],
                f"{own}.attention.output": layer.self_attention.linear[1],
                f"{own}.feed_forward.up": layer.ffn.linear_0,
                f"{own}.feed_forward.down": layer.ffn.linear_1,
            }
            norms = {
                f"{own}.attention_residual.after": layer.self_attention.layer_norm,
                f"{own}.feed_forward_residual.after": layer.ffn.layer_norm,
            }
            if side == "decoder":
                maps |= {
                    f"{own}.cross_attention.query": layer.attention.linear[0],
                    f"{own}.cross_attention.key_value": layer.attention.linear[1],
                    f"{own}.cross_attention.output": layer.attention.linear[2],
                }
                norms[f"{own}.cross_attention_residual.after"] = layer.attention.layer_norm
            for name, place in maps.items():
                place.weight, place.bias = ours[f"{name}.weight"].numpy(), ours[f"{name}.bias"].numpy()
            for name, place in norms.items():
                place.gamma, place.beta = ours[f"{name}.weight"].numpy(), ours[f"{name}.bias"].numpy()
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
