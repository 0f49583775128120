"""Prompts of published runs as chat templates, by name.

The templates are for base models, whose tokenizers have no roles. In the papers there is one
question and one answer; here further messages can follow, each on a new line.
"""

from __future__ import annotations

from collections.abc import Mapping

_NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}"
    "{{ raise_exception('this prompt has rules of its own, and no system role') }}{% endif %}"
)
_BEGIN = "{{ bos_token | default('', true) }}"

R1_ZERO = (
    f"{_NO_SYSTEM}{_BEGIN}"
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves "
    "it. The assistant first thinks about the reasoning process in the mind and then provides the "
    "user with the answer. The reasoning process and answer are enclosed within <think> </think> "
    "and <answer> </answer> tags, respectively, i.e., <think> reasoning process here </think> "
    "<answer> answer here </answer>."
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{{ eos_token }}\n"
    "{% else %}{{ ' ' if loop.first else '' }}User: {{ m.content }}. Assistant:"
    "{% endif %}{% endfor %}"
)
"""The prompt of DeepSeek-R1-Zero (arXiv:2501.12948, table 1), with a full stop after the
question."""

ORZ = (
    f"{_NO_SYSTEM}{_BEGIN}"
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves "
    "it. The Assistant first thinks about the reasoning process in the mind and then provides the "
    "User with the answer. The reasoning process is enclosed within <think> </think> and answer is "
    "enclosed within <answer> </answer> tags, respectively, i.e., <think> reasoning process here "
    "</think> <answer> answer here </answer>."
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}{{ eos_token }}\n"
    "{% else %}{{ ' ' if loop.first else '' }}User: {% if loop.first %}"
    "You must put your answer inside <answer> </answer> tags, i.e., <answer> answer here </answer>."
    " And your final answer will be extracted automatically by the \\boxed{} tag.\n"
    "This is the problem:\n{% endif %}{{ m.content }}\nAssistant:"
    "{{ ' <think>' if loop.last else '' }}{% endif %}{% endfor %}"
)
"""The prompt of Open-Reasoner-Zero (arXiv:2503.24290), as in that project's code. It ends with
``<think>``."""

QWEN_MATH = (
    "<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}"
    "Please reason step by step, and put your final answer within \\boxed{}.{% endif %}"
    "<|im_end|>\n"
    "{% for m in messages %}{% if m.role != 'system' %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The prompt of Qwen2.5-Math. Without a system message, the template adds its own rule."""

TEMPLATES: Mapping[str, str] = {"r1-zero": R1_ZERO, "orz": ORZ, "qwen-math": QWEN_MATH}
"""Templates by the name that ``chat.template`` accepts."""
