from __future__ import annotations

import os
import shutil

import pytest

REQUIRE_TOOLS = os.environ.get("POLYFMA_REQUIRE_TOOLS") == "1"


def need_tool(name: str) -> None:
    """Skip without an outside program; in CI (POLYFMA_REQUIRE_TOOLS=1) fail instead."""
    if shutil.which(name) is None:
        if REQUIRE_TOOLS:
            pytest.fail(f"{name} is not installed and POLYFMA_REQUIRE_TOOLS=1")
        pytest.skip(f"{name} is not installed")


@pytest.fixture
def sollya() -> None:
    need_tool("sollya")


@pytest.fixture
def nvcc() -> None:
    need_tool("nvcc")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu run where there is one."""
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU"))
