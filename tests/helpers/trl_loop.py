"""TRL's own GRPOTrainer, whose completions a function writes instead of a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

GROUP, BATCH = 4, 8
"""Members of a group, and episodes of the only step."""


def trained_by_trl(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    factory: Callable[[], Any],
    write: Callable[[str, int], str],
) -> tuple[Any, list[str]]:
    """One step of TRL's trainer: the trainer, and every prompt that was to be completed.

    Args:
        folder: folder of the run.
        rows: rows of the data set.
        factory: makes environments.
        write: the assistant's message for a prompt and its place among those that wait.
    """
    import torch
    import trl
    from datasets import Dataset
    from transformers import Qwen3Config, Qwen3ForCausalLM

    prompts: list[str] = []

    class Scripted(trl.GRPOTrainer):
        """All of TRL but the sampling."""

        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            texts = [self._tokenizer.decode(ids) for ids in prompt_ids]
            prompts.extend(texts)
            written = [f"{write(text, place)}<|im_end|>" for place, text in enumerate(texts)]
            return [self._tokenizer(text)["input_ids"] for text in written], None

    torch.manual_seed(0)
    processing = _tokenizer()
    config = Qwen3Config(
        vocab_size=len(processing),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=8192,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL's and its libraries' own.
        trainer = Scripted(
            model=Qwen3ForCausalLM(config),
            processing_class=processing,
            train_dataset=Dataset.from_list(list(rows)),
            environment_factory=factory,
            args=trl.GRPOConfig(
                output_dir=str(folder),
                per_device_train_batch_size=BATCH,
                num_generations=GROUP,
                max_completion_length=6000,
                max_steps=1,
                logging_steps=1,
                report_to=[],
                bf16=False,
                use_cpu=True,
                gradient_checkpointing=False,
                save_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer.train()
    return trainer, prompts


def _tokenizer() -> Any:
    """Bytes and Qwen3's special tokens, with its template as TRL ships it."""
    import trl
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    wrapped.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    wrapped.chat_template = template.read_text(encoding="utf-8")
    return wrapped
