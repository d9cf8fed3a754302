"""Target `gguf`: one file with model and tokenizer for llama.cpp, for language models with Llama's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from glassformer.blocks.positions import RotaryConfig
from glassformer.core.errors import user_error
from glassformer.interchange.export import (
    ExportExample,
    ExportPlan,
    ExportSource,
    LoadingScript,
    Obstacle,
    Outputs,
    Target,
    compute_logits,
    greedy,
)
from glassformer.interchange.gguf_tokenizer import GGUFTokenizer, describe_tokenizer
from glassformer.interchange.huggingface_classes import CLASSES, ModelClass
from glassformer.interchange.huggingface_parts import epsilon
from glassformer.interchange.read_gguf import BLOCKS, OUTER
from glassformer.interchange.read_llama2c import interleaved
from glassformer.models.task_types import CausalLM
from glassformer.models.transformer import TransformerConfig
from glassformer.tasks.language import CausalLanguageTask

FILE = "model.gguf"
LIMITS = {"f16": (0.05, 0.9), "q8_0": (1.0, 0.5)}
"""Largest allowed difference of a log-probability, and smallest fraction of identical outputs, by type."""
SCRIPT = """\
import xllamacpp

folder, text = FOLDER, TEXT
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_gpu_layers = f"{folder}/model.gguf", 0, 0
server = xllamacpp.Server(params)
answer = server.handle_completions({"prompt": text, "max_tokens": 20, "temperature": 0})
print(answer["choices"][0]["text"])
"""
MAX_ANSWERS = 200_000
"""Maximum number of log-probabilities that the engine returns after all prompts together."""
LEAST = -60.0
"""Log-probabilities below this count as equal, because llama.cpp rounds such probabilities to 0."""
REPLACEMENT = "\ufffd"
"""Character that decoded text has in place of bytes that are not UTF-8."""
_NAMES = {theirs: ours for ours, theirs in {**BLOCKS, **OUTER}.items()}
_LLAMA = replace(
    next(kind for kind in CLASSES if isinstance(kind, ModelClass) and kind.name == "LlamaForCausalLM"),
    name="the Llama of llama.cpp",
)


class GGUFTarget(Target):
    """Export to llama.cpp: `model.gguf`, with the tokenizer and the tokens that are never generated."""

    name = "gguf"
    tolerance = 1e-4
    packages = ("gguf", "xllamacpp")
    engine = "run_gguf.py"
    library = "llama.cpp"
    options: ClassVar[tuple[str, ...]] = ("quantization",)

    def __init__(self, quantization: str | None = None) -> None:
        if quantization is not None and quantization not in LIMITS:
            raise user_error(
                "the target gguf does not have this type",
                path="--quantization",
                value=quantization,
                allowed=sorted(LIMITS),
            )
        self.quantization = quantization
        if quantization is not None:
            self.tolerance, self.required_outputs = LIMITS[quantization]

    def obstacles(self, plan: ExportPlan) -> list[Obstacle]:
        if not isinstance(plan.task_type, CausalLM):
            reason = "llama.cpp runs causal language models, this is another task"
            return [Obstacle("task.kind", reason, "export to onnx")]
        if not isinstance(plan.model, TransformerConfig):
            reason = "llama.cpp does not know this kind of model"
            return [Obstacle("model.kind", reason, "train with model.kind=transformer")]
        found = _LLAMA.obstacles(plan)
        if not isinstance(plan.task, CausalLanguageTask):
            reason = "llama.cpp has no tokenizer that splits inputs as this task does"
            return [*found, Obstacle("task.kind", reason, "export to huggingface, ctranslate2 or onnx")]
        tokenizer = describe_tokenizer(plan.task)
        return [*found, tokenizer] if isinstance(tokenizer, Obstacle) else found

    def write(self, source: ExportSource, folder: Path) -> None:
        import gguf

        writer = gguf.GGUFWriter(folder / FILE, "llama")
        self._write_fields(writer, source)
        _write_tokenizer(writer, source)
        for name, tensor in _LLAMA.weights(source):
            data, kind = self._encoded(name, _reordered(name, tensor, source.config))
            writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def _write_fields(self, writer: Any, source: ExportSource) -> None:
        import gguf

        config = source.config
        assert isinstance(config.position, RotaryConfig)
        types = {
            None: gguf.LlamaFileType.ALL_F32,
            "f16": gguf.LlamaFileType.MOSTLY_F16,
            "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
        }
        writer.add_name(source.run.path.resolve().name)
        writer.add_file_type(types[self.quantization])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_vocab_size(source.task_type.vocabulary)
        writer.add_context_length(source.task_type.max_length)
        writer.add_embedding_length(config.hidden_dim)
        writer.add_block_count(config.num_layers)
        writer.add_feed_forward_length(config.feed_forward_dim)
        writer.add_head_count(config.num_heads)
        writer.add_head_count_kv(config.num_key_value_heads or config.num_heads)
        writer.add_layer_norm_rms_eps(epsilon(config.norm))
        writer.add_rope_dimension_count(config.hidden_dim // config.num_heads)
        writer.add_rope_freq_base(config.position.base)

    def _encoded(self, name: str, tensor: torch.Tensor) -> tuple[np.ndarray, Any]:
        """Return a tensor in the chosen type. Vectors stay in float32, as in llama.cpp's own files."""
        import gguf

        data = tensor.detach().float().contiguous().numpy()
        kind = gguf.GGMLQuantizationType.F32
        if data.ndim == 2 and self.quantization is not None:
            kind = gguf.GGMLQuantizationType[self.quantization.upper()]
            if data.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:  # rows that have no whole blocks
                kind = gguf.GGMLQuantizationType.F16
            data = gguf.quantize(data, kind)
        return data, kind

    def notes(self, source: ExportSource) -> list[str]:
        if not _reads_known_texts_only(source):
            return []
        return [
            "llama.cpp splits words and characters that are not in the vocabulary into known parts; here they"
            " are the unknown token. Such texts get other outputs"
        ]

    def loading_script(self, source: ExportSource) -> LoadingScript:
        return LoadingScript("xllamacpp", SCRIPT)

    def prepare(self, source: ExportSource, examples: Sequence[ExportExample]) -> list[ExportExample]:
        """Return the examples without their first words if these are unknown, as the note explains.

        The beginning of an example may be unknown because the example begins within a text.
        """
        if not _reads_known_texts_only(source):
            return list(examples)
        return [known for example in examples if (known := _known(source, example)) is not None]

    def request(self, source: ExportSource, examples: Sequence[ExportExample]) -> dict[str, Any]:
        vocabulary, length = source.task_type.vocabulary, source.task_type.max_length
        assert isinstance(source.task, CausalLanguageTask)
        tokenizer = source.task.tokenizer
        ids = (number for number in range(vocabulary) if tokenizer.is_text[number])
        return {
            "end": tokenizer.end,
            "whole_character": next(number for number in ids if tokenizer.decode([number]).isascii()),
            "file": FILE,
            "vocabulary": vocabulary,
            "length": length,
            "rooms": [max(1, length - len(example.tokens)) for example in examples],
            "most_probable": min(vocabulary, max(1, MAX_ANSWERS // max(1, len(examples)))),
        }

    def reference(self, source: ExportSource, examples: Sequence[ExportExample], positions: int) -> Outputs:
        """Return the log-probabilities after the prompt and after the first greedy tokens.

        The texts are what follows the prompt, with the space before its first word.
        """
        tokens, _ = greedy(source, examples)
        tokenizer = source.source_tokens.tokenizer
        assert tokenizer is not None
        longer = [
            replace(example, tokens=example.tokens + row[: positions - 1])
            for example, row in zip(examples, tokens, strict=True)
        ]
        logits = compute_logits(source.run.model, longer, positions)
        logs, texts = [], []
        for example, row, found in zip(examples, tokens, logits, strict=True):
            kept = found[-1 - min(len(row), positions - 1) :]
            logs.append(torch.from_numpy(kept).log_softmax(-1).numpy())
            prompt = tokenizer.decode(example.tokens)
            texts.append(tokenizer.decode([*example.tokens, *row])[len(prompt) :])
        return Outputs(logs, tokens, texts, [example.tokens for example in examples])

    def compare(self, ours: Outputs, theirs: Outputs) -> tuple[float, list[str | None]]:
        """Compare log-probabilities as far as the engine returned them, up to the first other token."""
        largest, reasons = 0.0, []
        for number, (mine, other) in enumerate(zip(ours.logits, theirs.logits, strict=True)):
            pairs = enumerate(zip(ours.tokens[number], theirs.tokens[number], strict=False))
            first = next((index for index, (left, right) in pairs if left != right), len(mine))
            rows = slice(0, min(len(mine), len(other), first + 1))
            difference = np.abs(np.maximum(mine[rows], LEAST) - np.maximum(other[rows], LEAST))
            found = difference[~np.isnan(difference)]
            largest = max(largest, float(found.max()) if len(found) else np.inf)
            reasons.append(self._difference(ours, theirs, number))
        return largest, reasons

    def _difference(self, ours: Outputs, theirs: Outputs, number: int) -> str | None:
        """Describe how the outputs of an example differ. Bytes that are not UTF-8 have no text to compare."""
        if ours.texts is not None and REPLACEMENT in ours.texts[number]:
            ours, theirs = replace(ours, texts=None), replace(theirs, texts=None)
        return super()._difference(ours, theirs, number)


def _reads_known_texts_only(source: ExportSource) -> bool:
    """Return True if llama.cpp splits only those texts as we do that have no unknown token."""
    assert isinstance(source.task, CausalLanguageTask)
    found = describe_tokenizer(source.task)
    return isinstance(found, GGUFTokenizer) and found.model == "t5"


def _known(source: ExportSource, example: ExportExample) -> ExportExample | None:
    """Return the longest end of an example that has no unknown token, or None if there is none."""
    task, text = source.task, example.text
    while text:
        tokens = task.parse(text).tolist()
        if not any(map(task.is_unknown, tokens)):
            return replace(example, text=text, tokens=tokens)
        text = text[1:].lstrip()
    return None


def _gguf_name(name: str) -> str:
    """Return the name of a tensor of Hugging Face's Llama in a GGUF file."""
    layer, _, part = name.rpartition(".")
    if layer in _NAMES:
        return f"{_NAMES[layer]}.{part}"
    number, _, layer = layer.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{_NAMES[layer]}.{part}"


def _reordered(name: str, tensor: torch.Tensor, config: TransformerConfig) -> torch.Tensor:
    """Return a query or key projection with the rows that rotate together side by side."""
    groups = config.num_key_value_heads or config.num_heads
    for part, heads in (("q_proj", config.num_heads), ("k_proj", groups)):
        if f"self_attn.{part}." in name:
            return interleaved(tensor, heads)
    return tensor


def _write_tokenizer(writer: Any, source: ExportSource) -> None:
    task = source.task
    assert isinstance(task, CausalLanguageTask)
    found = describe_tokenizer(task)
    assert isinstance(found, GGUFTokenizer)
    writer.add_tokenizer_model(found.model)
    writer.add_token_list(found.tokens)
    writer.add_token_types(found.types)
    if found.scores is not None:
        writer.add_token_scores(found.scores)
    if found.merges is not None:
        writer.add_token_merges(found.merges)
    if found.split is not None:
        writer.add_tokenizer_pre(found.split)
    names = {"pad": "padding", "unknown": "unknown", "begin": "bos", "end": "eos", "mask": "mask"}
    for role, number in found.roles.items():
        writer.add_uint32(f"tokenizer.ggml.{names[role]}_token_id", number)
    adds_begin = task.tokenizer.begins_prompts and not task.config.is_running
    for name, flag in {"add_bos_token": adds_begin, "add_eos_token": False, **found.flags}.items():
        writer.add_bool(f"tokenizer.ggml.{name}", flag)
    writer.add_array("tokenizer.ggml.suppress_tokens", list(task.forbidden))
