"""Prepares a Python process for vLLM's V2 model runner on a CPU, if `FORERUN_V2_BENCH` is set.

Python imports this module at startup in every process of an engine or server, because its folder is on
PYTHONPATH. Modules are patched right after their first import:
- `triton.backends` gets an entry "cpu", without which vLLM does not use Triton on a CPU;
- `triton.runtime.interpreter` accepts masks of integers, which vLLM's kernels make, and does not repeat work
  at every call, which makes kernels twice as fast;
- `topk_topp_sampler` uses its torch version, since its Triton kernel cannot be interpreted;
- `vllm.platforms.cpu` leaves async scheduling as it was requested, instead of turning it off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType, SimpleNamespace
from typing import Any

VARIABLE = "FORERUN_V2_BENCH"
FOLDER = os.path.dirname(os.path.abspath(__file__))


class CPUDriver:
    """A driver that reports itself active."""

    @staticmethod
    def is_active() -> bool:
        return True


def add_cpu_backend(module: Any) -> None:
    module.backends["cpu"] = SimpleNamespace(driver=CPUDriver, compiler=None)


def patch_interpreter(module: Any) -> None:
    accept_integer_masks(module)
    skip_repeated_work(module)


def accept_integer_masks(module: Any) -> None:
    import numpy as np

    def patch(name: str, index: int) -> None:
        stock = getattr(module.InterpreterBuilder, name)

        def with_boolean_mask(self: Any, *args: Any) -> Any:
            mask = args[index]
            if mask is not None and mask.data.dtype != np.bool_:
                boolean = module.TensorHandle(mask.data.astype(np.bool_), mask.dtype)
                args = (*args[:index], boolean, *args[index + 1 :])
            return stock(self, *args)

        setattr(module.InterpreterBuilder, name, with_boolean_mask)

    patch("create_masked_load", 1)
    patch("create_masked_store", 2)


def skip_repeated_work(module: Any) -> None:
    """Do not check integer overflow, patch `triton.language` once for good, and remember types."""
    module.interpreter_builder.options = replace(module.interpreter_builder.options, sanitize_overflow=False)
    patch_language, patched = module._patch_lang, SimpleNamespace(restore=lambda: None)
    seen: set[int] = set()

    def patch_once(function: Any) -> Any:
        if id(function.__globals__) not in seen:
            seen.add(id(function.__globals__))
            patch_language(function)
        return patched

    module._patch_lang = patch_once
    by_scalar, of_pointer = cache(module._get_np_dtype), module._get_np_dtype

    def np_dtype(dtype: Any) -> Any:
        return of_pointer(dtype) if dtype.scalar.is_ptr() else by_scalar(dtype.scalar)

    module._get_np_dtype = np_dtype


def use_torch_top_k_top_p(module: Any) -> None:
    module.HAS_TRITON = False


def keep_async_scheduling(module: Any) -> None:
    stock = module.CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        requested = vllm_config.scheduler_config.async_scheduling
        stock(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = requested

    module.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


PATCHES: dict[str, Callable[[Any], None]] = {
    "triton.backends": add_cpu_backend,
    "triton.runtime.interpreter": patch_interpreter,
    "vllm.v1.sample.ops.topk_topp_sampler": use_torch_top_k_top_p,
    "vllm.platforms.cpu": keep_async_scheduling,
}


class PatchingLoader(Loader):
    """Loads a module as its own loader does, then patches it."""

    def __init__(self, loader: Any, patch: Callable[[Any], None]) -> None:
        self.loader, self.patch = loader, patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self.loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.patch(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class PatchingFinder(MetaPathFinder):
    """Finds the modules of `PATCHES`; all others are left to the other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in PATCHES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = PatchingLoader(spec.loader, PATCHES[fullname])
        return spec


def run_other_sitecustomize() -> None:
    """Run the environment's own `sitecustomize`, which this one shadows."""
    others = [folder for folder in sys.path if os.path.abspath(folder) != FOLDER]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    run_other_sitecustomize()
    if os.environ.get(VARIABLE) and find_spec("triton") is not None:
        sys.meta_path.insert(0, PatchingFinder())
