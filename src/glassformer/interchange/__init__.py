"""Conversion of models from other libraries."""

TARGETS = {
    "ctranslate2": "glassformer.interchange.ctranslate2_export:CTranslate2Target",
    "gguf": "glassformer.interchange.gguf_export:GGUFTarget",
    "huggingface": "glassformer.interchange.huggingface_export:HuggingFaceTarget",
    "onnx": "glassformer.interchange.onnx_export:OnnxTarget",
    "web": "glassformer.interchange.web_export:WebTarget",
}
"""Class of each target of `export`, as `module:class`, so that a target is imported only if it is used."""
