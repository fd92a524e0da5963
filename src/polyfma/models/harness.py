"""lm-eval in process: the same tasks on the same model under every arm, paired by request.

Tasks are lm-eval's names (which download their data) or YAML files of tasks whose data are local files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from polyfma.errors import MissingToolError, PolyfmaError
from polyfma.models.patching import Config, patch
from polyfma.models.quality import Progress, interval

# The zero-shot tasks that open-weight models are commonly compared on; which eight the published table averages is not printed with it.
COMMON = ("arc_easy", "arc_challenge", "boolq", "hellaswag", "lambada_openai", "openbookqa", "piqa", "winogrande")
TESTED = "0.4.13"


def evaluate_tasks(model: nn.Module, tokenizer: Any, arms: Mapping[str, Config | None], tasks: Sequence[str], *, batch_size: int = 8,
                   limit: int | None = None, progress: Progress | None = None) -> dict[str, Any]:  # fmt: skip
    """{"arms": {arm: {task: {"metric", "value", "change", "interval"}}}, "requests": {task: count}}: each arm's mean of a task's first metric, its
    change against native, and the 95 percent interval of that change over paired requests.

    ``tasks`` are names, ``common`` for COMMON, or paths of YAML files. Raises MissingToolError without lm-eval, PolyfmaError for an unknown task.
    """
    lm_eval = _lm_eval()
    names, manager = _tasks(lm_eval, tasks)
    found: dict[str, dict[str, Any]] = {}
    for done, (arm, config) in enumerate({"native": None, **arms}.items()):
        if progress:
            progress(done, len(arms) + 1, f"lm-eval: {arm}")
        handle = None if config is None else patch(model, config)
        try:
            lm = lm_eval.models.huggingface.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
            found[arm] = lm_eval.simple_evaluate(model=lm, tasks=names, task_manager=manager, limit=limit, log_samples=True, bootstrap_iters=0, verbosity="ERROR")
        finally:
            if handle is not None:
                handle.unpatch()
    native = _scores(found["native"])
    return {"arms": {arm: _compared(_scores(results), native) for arm, results in found.items()}, "requests": {task: len(s) for task, (_, s) in native.items()}}


def _lm_eval() -> Any:
    try:
        import lm_eval
        import lm_eval.models.huggingface
        import lm_eval.tasks
    except ImportError as error:
        raise MissingToolError(f"tasks need lm-eval, which is not installed (tested: {TESTED}); pip install 'polyfma[eval]'") from error
    return lm_eval


def _tasks(lm_eval: Any, tasks: Sequence[str]) -> tuple[list[str], Any]:
    """Names of tasks, and a manager that knows those of files."""
    files = [Path(t) for t in tasks if t.endswith((".yaml", ".yml"))]
    for path in files:
        if not path.is_file():
            raise PolyfmaError(f"task file {str(path)!r} is not there")
    manager = lm_eval.tasks.TaskManager(include_path=[str(p.parent) for p in files] or None)
    names = [name for t in tasks for name in (COMMON if t == "common" else (_task_of(Path(t)) if t.endswith((".yaml", ".yml")) else t,))]
    unknown = [n for n in names if n not in manager.all_tasks]
    if unknown:
        raise PolyfmaError(f"lm-eval knows no task {unknown[0]!r}; lm-eval ls tasks lists its own, a YAML file names one of local data")
    return names, manager


def _task_of(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "task":
            return value.strip().strip("'\"")
    raise PolyfmaError(f"task file {str(path)!r} has no line task: NAME")


def _scores(results: Mapping[str, Any]) -> dict[str, tuple[str, np.ndarray]]:
    """{task: (its first metric, that of each request in the order of documents)}."""
    found = {}
    for task, samples in results["samples"].items():
        metric = samples[0]["metrics"][0]
        ordered = sorted(samples, key=lambda s: s["doc_id"])
        found[task] = (metric, np.array([_number(s[metric]) for s in ordered], dtype=np.float64))
    return found


def _number(value: Any) -> float:
    """A request's score; perplexities come as (log-likelihood, weight)."""
    return float(value[0] / value[1] if isinstance(value, tuple | list) else value)


def _compared(scores: Mapping[str, tuple[str, np.ndarray]], native: Mapping[str, tuple[str, np.ndarray]]) -> dict[str, Any]:
    table = {}
    for task, (metric, values) in scores.items():
        change = values - native[task][1]
        table[task] = {"metric": metric, "value": float(np.mean(values)), "change": float(np.mean(change)), "interval": interval(change)}
    return table
