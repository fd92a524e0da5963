"""Programs in whole models: patch one, see what changed, measure what it costs in quality, undo it.

::

    with pf.patch(model) as handle:
        print(handle.report())
        ...

Works with any torch model for plain activations and gated MLPs; routed experts, softcapped attention and the attention
implementation ``polyfma`` are those of transformers 5, the overrides those of torchtitan 0.3 (:mod:`polyfma.models.titan`).
"""

from __future__ import annotations

from polyfma.models.attention import register as register_attention
from polyfma.models.patching import Config, Handle, Replaced, Report, patch, unpatch

__all__ = ["Config", "Handle", "Replaced", "Report", "patch", "register_attention", "unpatch"]
