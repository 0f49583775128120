"""The name of a transformers model's key-value cache, which differs between versions.

transformers 5.24 renamed the parameter and the field of the output from ``past_key_values`` to
``cache``. A model whose code comes with its weights keeps the name with which it was written.
"""

from __future__ import annotations

import inspect

from torch import nn

_NAMES = ("cache", "past_key_values")


def cache_name(model: nn.Module) -> str:
    """Name of the cache in the model's ``forward`` parameters and in its output.

    Args:
        model: a transformers model. It may be wrapped by a module that passes all arguments on.

    Raises:
        ValueError: no module of the model takes a cache, as in OpenAI's first GPT.
    """
    for module in model.modules():
        parameters = inspect.signature(module.forward).parameters
        for name in _NAMES:
            if name in parameters:
                return name
    raise ValueError(
        f"{type(model).__name__}: no forward method takes a key-value cache (a parameter called "
        f"{' or '.join(_NAMES)}). Use a causal language model of transformers."
    )
