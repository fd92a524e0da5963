"""The torch dtypes of the formats that operators run in."""

from __future__ import annotations

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS = {dtype: name for name, dtype in DTYPES.items()}
