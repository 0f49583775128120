"""Model cards: the README.md of a trained model, in the form that the Hugging Face hub reads."""

from __future__ import annotations

import logging
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.files import replace_text
from rl.reports.card_facts import AFTER, CURVE, CardFacts, is_hub_id, read_facts
from rl.reports.redaction import Redactor

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

logger = logging.getLogger(__name__)
CARD = "README.md"
PLACEHOLDER = "USER/MODEL"
"""The model's id on the hub in a card; ``rl.push`` replaces it."""
PAPERS = {
    "cispo": "2506.13585",
    "dapo": "2503.14476",
    "dapo-loss": "2503.14476",
    "dpo": "2305.18290",
    "dr-grpo": "2503.20783",
    "gigpo": "2505.10978",
    "gmpo": "2507.20673",
    "grpo": "2402.03300",
    "gspo": "2507.18071",
    "kimi": "2501.12599",
    "oreal": "2502.06781",
    "orz": "2503.24290",
    "ppo": "1707.06347",
    "prime": "2502.01456",
    "reinforce-pp": "2501.03262",
    "rloo": "2402.14740",
    "sapo": "2511.20347",
    "vineppo": "2410.01679",
}
"""The arXiv number of an algorithm's paper."""
_TAGS = {
    "rl.train": ("reinforcement-learning", "agents"),
    "rl.reward_model": ("reward-model",),
}
_BIBTEX = """@software{turnwise,
  title = {turnwise: multi-turn text environments and reinforcement learning of language agents},
  author = {{The turnwise maintainers}},
  version = {VERSION},
  license = {Apache-2.0}
}"""
_LOAD = {
    "model": "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
    'model = AutoModelForCausalLM.from_pretrained("USER/MODEL")',
    "adapter": "from peft import AutoPeftModelForCausalLM\n"
    "from transformers import AutoTokenizer\n\n"
    'model = AutoPeftModelForCausalLM.from_pretrained("USER/MODEL")',
    "classifier": "from transformers import AutoModelForSequenceClassification, AutoTokenizer\n\n"
    'model = AutoModelForSequenceClassification.from_pretrained("USER/MODEL")',
}


def write_card(model: Path, folder: Path, result: Mapping[str, Any] | None = None) -> None:
    """Write the card of the checkpoint ``model`` of the run in ``folder``, and copy the curve.

    ``result`` has numbers that the command reports and no file of the run contains.

    A card is not worth a run: an error of any kind is logged, and the run continues without a card.
    """
    if not model.is_dir():
        return
    try:
        if (folder / CURVE).is_file():
            shutil.copyfile(folder / CURVE, model / CURVE)
        replace_text(model / CARD, card_text(model, folder, result or {}))
    except Exception as error:
        logger.warning("%s has no model card: %s: %s", model, type(error).__name__, error)


def card_text(model: Path, folder: Path, result: Mapping[str, Any]) -> str:
    """The card of the checkpoint ``model`` of the run in ``folder``, with :data:`PLACEHOLDER`.

    Raises:
        UsageError: the folder holds no run.
    """
    facts = read_facts(model, folder, result)
    text = f"---\n{_metadata(facts, folder.name).to_yaml()}\n---\n\n"
    return Redactor().text(text + "\n\n".join(_paragraphs(facts, folder.name)) + "\n")


def _metadata(facts: CardFacts, name: str) -> ModelCardData:
    """The YAML header that the hub reads."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=facts.env or "preferences",
            dataset_name=f"{facts.env or Path(facts.data).name}, {one.data}",
            dataset_split="test",
            metric_type=one.score,
            metric_name=f"mean of {one.rate.count} {one.data}",
            metric_value=round(one.rate.rate, 4),
            metric_config=f"95% interval {one.rate.low:.4f} to {one.rate.high:.4f}",
        )
        for one in facts.measured
        if one.when == AFTER
    ]
    tags = ["turnwise", *_TAGS.get(facts.recorded.command, ()), facts.algorithm, facts.env]
    return ModelCardData(
        model_name=name if results else None,
        base_model=facts.base_model if is_hub_id(facts.base_model) else None,
        datasets=[facts.data] if is_hub_id(facts.data) else None,
        library_name="peft" if facts.is_adapter else "transformers",
        pipeline_tag="text-classification" if facts.is_classifier else "text-generation",
        tags=[tag for tag in tags if tag],
        eval_results=results or None,
    )


def _paragraphs(facts: CardFacts, name: str) -> Iterator[str]:
    yield f"# {name}"
    yield _summary(facts)
    if facts.has_curve:
        yield f"![Reward or loss, and success on held-out tasks, over the steps]({CURVE})"
    yield from _results(facts)
    yield "## How to load the model"
    kind = "adapter" if facts.is_adapter else "classifier" if facts.is_classifier else "model"
    tokenizer = 'tokenizer = AutoTokenizer.from_pretrained("USER/MODEL")'
    yield f"```python\n{_LOAD[kind]}\n{tokenizer}\n```"
    if facts.env and not facts.is_classifier:
        yield "Play the environment's test tasks with the model:"
        yield f"```sh\n{_eval_line(facts)}\n```"
    yield "## How to repeat the training"
    commit = facts.versions.get("commit")
    yield f"```sh\n{facts.recorded.command_line}\n```"
    if commit:
        yield f"The code is turnwise at commit `{commit}`."
    yield from _settings(facts)
    yield "## Citation"
    yield f"```bibtex\n{_BIBTEX.replace('VERSION', _version(facts))}\n```"


def _summary(facts: CardFacts) -> str:
    """The first sentences: what was trained, from what, and how."""
    base, paper = facts.base_model, PAPERS.get(facts.algorithm)
    origin = f"[{base}](https://huggingface.co/{base})" if is_hub_id(base) else f"`{base}`"
    if base == "tiny":
        origin = "`tiny` (a small Qwen3 that turnwise creates and warm-starts)"
    how = f"`{facts.algorithm}`"
    if paper:
        how += f" ([arXiv {paper}](https://arxiv.org/abs/{paper}))"
    where = f" in the environment `{facts.env}`" if facts.env else ""
    data = f" on the data `{facts.data}`" if facts.data else ""
    adapter = "This LoRA adapter" if facts.is_adapter else "This model"
    return (
        f"{adapter} was trained from {origin}{where}{data} by {how} with turnwise "
        f"{_version(facts)}."
    )


def _results(facts: CardFacts) -> Iterator[str]:
    rows = [
        f"| {one.when} | {one.score} on {one.rate.count} {one.data} | {one.rate.rate:.3f} "
        f"| {one.rate.low:.3f} to {one.rate.high:.3f} |"
        for one in facts.measured
    ]
    if rows:
        yield "## Results"
        yield "\n".join(["| | measured | mean | 95% interval |", "|---|---|---|---|", *rows])
        yield (
            "The interval is that of the mean over tasks or pairs like these, for these weights. "
            "It does not contain the differences between runs with other seeds."
        )
    if facts.validation is not None:
        step, success = facts.validation
        yield (
            f"The weights are those of the best validation: {success:.3f} after step {step}. A "
            f"maximum over validations is biased upwards; the test tasks are others."
        )


def _eval_line(facts: CardFacts) -> str:
    changed = facts.recorded.changed
    options = [f"{k}={v}" for k, v in changed.items() if k.startswith("env.")]
    words = [f"env={facts.env}", *options, f"model={PLACEHOLDER}"]
    return shlex.join(["python", "-m", "rl.eval", *words])


def _settings(facts: CardFacts) -> Iterator[str]:
    """The settings: a table of those that differ from the defaults, and all of them, folded."""
    yield "## Configuration"
    rows = [f"| `{key}` | {_cell(value)} |" for key, value in facts.recorded.changed.items()]
    yield "Settings other than the defaults, and the main choices:"
    yield "\n".join(["| setting | value |", "|---|---|", *rows])
    lines = "\n".join(f"{key}={value}" for key, value in facts.recorded.settings.items())
    fence = "`" * 4
    yield (
        f"<details><summary>All settings</summary>\n\n{fence}text\n{lines}\n{fence}\n\n</details>"
    )
    known = {"Python": facts.versions.get("python"), **facts.versions.get("packages", {})}
    if facts.versions.get("vllm"):
        known["vLLM"] = facts.versions["vllm"]
    yield "Versions: " + ", ".join(f"{name} {number}" for name, number in known.items()) + "."


def _cell(value: str) -> str:
    """A value as a cell of a Markdown table."""
    shown = value.replace("|", "\\|").replace("\n", " ")
    return f"`{shown}`" if shown else ""


def _version(facts: CardFacts) -> str:
    return str(facts.versions.get("packages", {}).get("turnwise", "of unknown version"))
