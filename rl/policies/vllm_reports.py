"""What vLLM reports about each token, beside its log-probability."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.errors import UsageError

if TYPE_CHECKING:
    import torch

    from rl.policies.engine import RunSettings


def check_reports(config: RunSettings, device: torch.device) -> None:
    """Check that vLLM can report what training needs about each token.

    Raises:
        UsageError: it cannot report the sampling support or the experts.
    """
    from rl.settings.train import TrainConfig

    sampling = config.sampling_params
    if sampling.with_experts and device.type == "cpu":
        raise UsageError(
            "replay_routing (True) must be False with vLLM on a CPU: there it does not report the "
            "experts of tokens; policy=local reports them"
        )
    if not sampling.needs_support:
        return
    if device.type == "cpu":
        raise UsageError(
            f"sampling.top_p ({sampling.top_p}) must be 1 and sampling.top_k ({sampling.top_k}) 0 "
            "with vLLM on a CPU: there it does not report the tokens that they left, which "
            "importance ratios need; policy=local reports them"
        )
    if not sampling.top_k:
        raise UsageError(
            f"sampling.top_k (0) must be above 0 with vLLM and sampling.top_p ({sampling.top_p}): "
            "top_k bounds the number of tokens that vLLM reports"
        )
    # A server that reports supports does so in every response, without top_k the whole vocabulary.
    if isinstance(config, TrainConfig) and not (config.eval.top_k and config.eval.temperature):
        raise UsageError(
            f"eval.top_k ({config.eval.top_k}) and eval.temperature ({config.eval.temperature}) "
            "must be above 0 with vLLM if training truncates sampling: a vLLM that reports "
            "supports rejects greedy requests, and needs a top_k"
        )
