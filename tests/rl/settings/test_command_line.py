"""Command lines: their parsing, their help and their one-line errors."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
import typing
from typing import get_args

import pytest

from rl.credit.algorithms import ALGORITHMS
from rl.distill import DistillConfig
from rl.errors import UsageError
from rl.judge import JudgeConfig
from rl.replay import ReplayConfig
from rl.settings.evaluate import EvaluateConfig
from rl.settings.finetuning import DPOConfig, RewardModelConfig, SFTConfig
from rl.settings.parsing.command_line import _blueprint, parse
from rl.settings.parsing.plain import to_plain
from rl.settings.parsing.renamed_keys import ABSENT, ELSEWHERE
from rl.settings.run import as_lines, run_path
from rl.settings.train import PRESETS, TrainConfig
from rl.status import StatusConfig
from rl.step_labels import StepLabelsConfig


def train(*words):
    return parse(TrainConfig, words, command="python -m rl.train", presets=PRESETS)


def test_defaults_words_and_their_types():
    config = train(
        "env=toy-chatter",
        "env.tool_s=1",
        "steps=3",
        "--group-size=4",
        "deterministic=true",
        "optimizer.lr=1e-3",
        "algo=ppo",
        "algo.surrogate.dual_clip=3",
        "out=a=b",
    )
    assert config.env.env_id == "toy-chatter-v0"
    assert config.env.options.tool_s == 1.0
    assert (config.steps, config.group_size, config.prompts) == (3, 4, TrainConfig.prompts)
    assert config.deterministic is True
    assert (config.optimizer.lr, config.optimizer.warmup_steps) == (1e-3, 5)
    assert config.algo.name == "ppo"
    assert config.algo.row == ALGORITHMS["ppo"].changed({"surrogate.dual_clip": 3.0})
    assert config.out == "a=b"


def test_the_last_of_two_words_wins():
    assert train("env=toy-copy", "steps=3", "steps=4").steps == 4


@pytest.mark.parametrize("word", ["--dry-run", "dry_run", "--dry_run", "dry_run=true"])
def test_a_dry_run_in_every_spelling(word):
    assert train("env=toy-copy", word).dry_run is True


@pytest.mark.parametrize("config_type", [TrainConfig, EvaluateConfig, SFTConfig])
def test_a_key_that_is_refused_is_not_offered(capsys, config_type):
    with pytest.raises(SystemExit):
        parse(config_type, ["env=toy-copy", "--help"], command="c", presets=PRESETS)
    shown = capsys.readouterr().out
    assert "env.max_turns" in shown
    assert "env.split" not in shown
    with pytest.raises(UsageError) as caught:
        parse(config_type, ["env=toy-copy", "env.spilt=test"], command="c", presets=PRESETS)
    assert "env.split" not in str(caught.value)


@pytest.mark.parametrize("config_type", [StatusConfig, ReplayConfig])
def test_a_run_is_a_word_alone_or_run_equals_it(capsys, config_type):
    def read(*words):
        return parse(config_type, words, command="python -m c", presets={})

    assert read("runs/a") == read("run=runs/a") == read("--run=runs/a")
    assert read("dry_run=true", "runs/a") == read("runs/a", "--dry-run")
    with pytest.raises(UsageError, match="'runs/b' is a second run: give one"):
        read("runs/a", "runs/b")
    with pytest.raises(UsageError, match="'--runs/a' is not of the form key=value"):
        read("--runs/a")
    with pytest.raises(SystemExit):
        read("--help")
    assert capsys.readouterr().out.startswith("usage: python -m c RUN key=value ...\n")


def test_an_option_and_its_value_as_two_words_name_the_fix():
    with pytest.raises(UsageError) as refused:
        train("env=toy-copy", "--steps", "5")
    assert str(refused.value) == (
        "'--steps' is not of the form key=value: write steps=5 (see --help)"
    )
    with pytest.raises(
        UsageError, match=r"^'--steps' is not of the form key=value \(see --help\)$"
    ):
        train("--steps", "env=toy-copy")


def test_commands_without_a_run_take_no_word_alone():
    with pytest.raises(UsageError, match="'runs/a' is not of the form key=value"):
        train("runs/a")


def test_json_is_a_word_alone_where_there_is_such_a_key():
    words = ["env=toy-copy", "--json"]
    assert parse(EvaluateConfig, words, command="c", presets={}).json is True
    with pytest.raises(UsageError, match="unknown key 'json'"):
        train(*words)


BAD = [
    (
        "sampling.temperature=0",
        "sampling.temperature (0) must be above 0 in training: all greedy answers to a task are "
        "equal, and nothing is learned from them; give sampling.temperature=1 "
        "(eval.temperature=0 evaluates greedily)",
    ),
    ("env=toy-cpoy", "unknown environment 'toy-cpoy'. Did you mean 'toy-copy-v0'? Known: ..."),
    ("step=3", "unknown key 'step'. Did you mean 'steps'? --help=all lists them all."),
    (
        "sampling.temprature=1",
        "unknown key 'sampling.temprature'. Did you mean 'sampling.temperature'? "
        "--help=all lists them all.",
    ),
    (
        "temperature=1",
        "unknown key 'temperature'. Did you mean 'sampling.temperature'? "
        "--help=all lists them all.",
    ),
    ("env.tool_s=1", "unknown key 'env.tool_s'. ..."),
    ("lr=1", "unknown key 'lr'. Did you mean 'optimizer.lr'? --help=all lists them all."),
    (
        "batch_size=1",
        "unknown key 'batch_size'. Did you mean 'prompts'? --help=all lists them all.",
    ),
    (
        "num_generations=1",
        "unknown key 'num_generations'. Did you mean 'group_size'? --help=all lists them all.",
    ),
    (
        "env.split=test",
        "env.split ('test') must be left at 'train': a command takes each split where it belongs",
    ),
    ("qqqq=1", "unknown key 'qqqq'. --help=all lists them all."),
    ("algo=grop", "unknown algorithm 'grop'. Did you mean 'grpo'? One of: grpo, dr-grpo, ..."),
    ("policy=vllm", "unknown policy 'vllm'. Did you mean 'vllm-server'? One of: ..."),
    ("preset=smok", "unknown preset 'smok'. Did you mean 'smoke'? One of: smoke."),
    ("steps=many", "steps ('many') must be of type int"),
    ("steps=2.5", "steps ('2.5') must be of type int"),
    ("deterministic=maybe", "deterministic ('maybe') must be true or false"),
    ("dtype=f16", "dtype ('f16') must be one of auto, float32, bfloat16"),
    ("optimizer.betas=0.9", "optimizer.betas ('0.9') must be of type tuple[float, float] ..."),
    (
        "sampling=3",
        "sampling ('3') has settings of its own: give sampling.temperature=..., or sampling.top_p, "
        "sampling.top_k, sampling.max_tokens, sampling.slots",
    ),
    (
        "lora=16",
        "lora ('16') has settings of its own: give lora.rank=..., or lora.alpha, lora.targets, "
        "lora.base_bits",
    ),
    ("algo.kl=0.1", "algo.kl ('0.1') has settings of its own: give algo.kl.coef=..., or ..."),
    ("steps", "'steps' is not of the form key=value (see --help)"),
    ("steps=0", "steps (0) must be >= 1"),
    ("prompts=0", "prompts (0) must be >= 1"),
    ("seed=-1", "seed (-1) must be >= 0"),
    ("context_length=-1", "context_length (-1) must be >= 0"),
    ("max_seconds=-1", "max_seconds (-1.0) must be >= 0"),
    (
        "env.step_timeout_s=3600",
        "stall_s (3600) must be above env.step_timeout_s (3600), as a healthy run may make no "
        "progress for that long: give stall_s=4500, a smaller env.step_timeout_s, or stall_s=0 for "
        "no watchdog",
    ),
    ("threads=-1", "threads (-1) must be >= 0"),
    ("sampling.temperature=-1", "sampling.temperature (-1.0) must be >= 0"),
    ("sampling.temperature=nan", "sampling.temperature (nan) must be >= 0"),
    ("sampling.max_tokens=0", "sampling.max_tokens (0) must be >= 1"),
    ("sampling.slots=0", "sampling.slots (0) must be >= 1"),
    ("eval.every=0", "eval.every (0) must be >= 1"),
    ("eval.tasks=-1", "eval.tasks (-1) must be >= 0"),
    ("eval.test_tasks=-1", "eval.test_tasks (-1) must be >= 0"),
    ("eval.temperature=-0.5", "eval.temperature (-0.5) must be >= 0"),
    ("optimizer.lr=inf", "optimizer.lr (inf) must be from 0 to 1"),
    *(
        (f"{key}={zero}", f"{key} ({zero}) must be above 0: leave it out for the default")
        for key in ("optimizer.lr", "optimizer.critic_lr")
        for zero in ("0", "0.0", "-0", "0e5")
    ),
    ("policy.cache_gb=nan", "policy.cache_gb (nan) must be finite"),
    ("policy.cache_gb=inf", "policy.cache_gb (inf) must be finite"),
    ("learner.timeout_s=inf", "learner.timeout_s (inf) must be finite"),
    ("tiny.lr=nan", "tiny.lr (nan) must be above 0 and at most 1"),
    ("tiny.steps=0", "tiny.steps (0) must be >= 1"),
    ("algo.kl.coef=inf", "algo.kl.coef (inf) must be finite"),
    ("algo.entropy_coef=nan", "algo.entropy_coef (nan) must be finite"),
    ("sampling.temperature=inf", "sampling.temperature (inf) must be finite"),
    ("max_seconds=inf", "max_seconds (inf) must be finite"),
    ("seed=9223372036854775808", "seed (9223372036854775808) must be below 2**63"),
    ("threads=100000", "threads (100000) must be at most 1024"),
    ("optimizer.lr=-1", "optimizer.lr (-1.0) must be from 0 to 1"),
    ("algo.surrogate.clip_high=-1", "algo.surrogate.clip_high (-1.0) must be >= 0"),
    ("algo.advantage=none", "unknown advantage 'none'. Known: batch-outcome, ..."),
    ("algo.surrogate=gsop", "unknown surrogate 'gsop'. Did you mean 'gspo'? Known: ..."),
    (
        "algo.clip=0.3",
        "unknown key 'algo.clip'. Did you mean 'algo.surrogate.clip_low' and "
        "'algo.surrogate.clip_high'? --help=all lists them all.",
    ),
    (
        "clip_ratio=0.3",
        "unknown key 'clip_ratio'. Did you mean 'algo.surrogate.clip_low' and "
        "'algo.surrogate.clip_high'? --help=all lists them all.",
    ),
    (
        "algo.correction.kind=tiss",
        "algo.correction.kind (tiss) must be one of none, geo-mask, icepop, ...",
    ),
    ("stale_correction=tiss", "stale_correction (tiss) must be one of none, geo-mask, ..."),
    ("algo.kl_coef=1", "unknown key 'algo.kl_coef': it is called 'algo.kl.coef' now"),
    ("algo.lam=1", "unknown key 'algo.lam': it is called 'algo.advantage.lam' now"),
    (
        "algo.correction=tis",
        "unknown key 'algo.correction': it is called 'algo.correction.kind' now",
    ),
    (
        "algo.advantage.lam=1",
        "unknown key 'algo.advantage.lam'. algo.advantage=group-outcome has baseline, std.",
    ),
    (
        "algo.surrogate.clip_hig=1",
        "unknown key 'algo.surrogate.clip_hig'. Did you mean 'algo.surrogate.clip_high'? "
        "algo.surrogate=clip has clip_low, clip_high, dual_clip.",
    ),
    ("curriculum.keep=0", "curriculum.keep (0.0) must be above 0 and at most 1"),
    ("env.split=dev", "env.split ('dev') must be one of train, validation, test, all"),
    ("env.max_turns=0", "env.max_turns (0) must be >= 1"),
    ("config=missing.toml", "config=missing.toml: there is no such file"),
    ("config=.", "config=. is a folder without a config.json: give a TOML file, or a run's folder"),
]


@pytest.mark.parametrize(("word", "line"), BAD, ids=[word for word, _ in BAD])
def test_a_bad_word_is_one_line(word, line):
    with pytest.raises(UsageError) as refused:
        train("env=toy-copy", word)
    message = str(refused.value)
    assert message.startswith(line[:-3]) if line.endswith("...") else message == line
    assert "\n" not in message


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("max_new_tokens max_completion_length data.max_response_length", "sampling.max_tokens"),
        ("max_seq_length data.max_prompt_length rollout.max_model_len", "context_length"),
        ("num_iterations actor_rollout_ref.actor.ppo_epochs", "algo.epochs"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", "algo.minibatches"),
        ("report_to trainer.logger", "log"),
        ("trainer.project_name wandb_project", "log.project"),
        ("run_name trainer.experiment_name", "log.name"),
        ("wandb use_wandb", "log=wandb"),
        ("save_steps trainer.save_freq", "save_every"),
        ("eval_steps trainer.test_freq", "eval.every"),
        ("data.train_batch_size train_batch_size per_device_train_batch_size", "prompts"),
        (
            "actor_rollout_ref.rollout.n generator.n_samples_per_prompt num_generations",
            "group_size",
        ),
        ("precision bf16 torch_dtype", "dtype"),
        ("gamma algorithm.gamma", "algo=ppo algo.advantage.gamma"),
        ("algorithm.lam gae_lambda", "algo=ppo algo.advantage.lam"),
        ("algorithm.adv_estimator", "algo"),
        ("use_vllm vllm actor_rollout_ref.rollout.name", "policy=vllm-server"),
        ("vllm_server_base_url", "policy=vllm-server policy.url"),
        ("algorithm.kl_ctrl.kl_coef beta actor_rollout_ref.actor.kl_loss_coef", "algo.kl.coef"),
        ("trainer.total_epochs max_steps num_train_epochs total_timesteps", "steps"),
        ("actor_rollout_ref.actor.optim.lr learning_rate", "optimizer.lr"),
        ("critic.optim.lr", "optimizer.critic_lr"),
        ("actor_rollout_ref.actor.grad_clip", "optimizer.max_grad_norm"),
        ("lr_scheduler_type", "optimizer.decay_steps"),
        ("gradient_accumulation_steps critic.ppo_micro_batch_size_per_gpu", "micro_batch_tokens"),
        ("actor_rollout_ref.model.path model_name_or_path", "model"),
        ("actor_rollout_ref.rollout.val_kwargs.temperature", "eval.temperature"),
        ("actor_rollout_ref.rollout.temperature", "sampling.temperature"),
        ("trainer.n_gpus_per_node deepspeed", "learner.ranks"),
        ("data.train_files dataset_name", "env.tasks"),
        ("lora_r actor_rollout_ref.model.lora_rank", "lora.rank"),
        ("load_in_4bit", "lora.base_bits"),
        ("trainer.default_local_dir output_dir", "out"),
        ("resume_from_checkpoint trainer.resume_mode", "resume"),
        ("epsilon_high actor_rollout_ref.actor.clip_ratio_high", "algo.surrogate.clip_high"),
        ("max_tool_calling_iterations multi_turn.max_assistant_turns", "env.max_turns"),
        ("actor_rollout_ref.actor.loss_agg_mode loss_type", "algo.aggregation"),
    ],
)
def test_names_of_other_trainers_get_our_key(words, meant):
    for word in words.split():
        with pytest.raises(UsageError, match=f"Did you mean '{re.escape(meant)}'"):
            train("env=math", f"{word}=1")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("reward_funcs", "The environment computes the reward"),
        ("custom_reward_function.path", "The environment computes the reward"),
        ("logging_steps", "Every step is logged"),
        ("trust_remote_code", "It has no counterpart here."),
        ("vllm_group_port", "It has no counterpart here."),
        ("hub_token", "Upload a run's model with python -m rl.push."),
        ("actor_rollout_ref.actor.tau_pos", "It has no counterpart here."),
    ],
)
def test_a_name_without_a_counterpart_says_so(word, says):
    with pytest.raises(UsageError, match=f"unknown key '{re.escape(word)}'. {re.escape(says)}"):
        train("env=math", f"{word}=1")


def test_suggested_keys_exist_and_no_suggestion_replaces_a_key():
    commands = {
        TrainConfig: [["env=math"], ["env=math", "policy=vllm-server", "algo=ppo"]],
        SFTConfig: [["env=math"]],
        EvaluateConfig: [["env=math"]],
    }
    known = {
        key
        for kind, layers in commands.items()
        for words in layers
        for key in _blueprint(kind, {"": dict(word.split("=") for word in words)})
        ._make_lazy()
        .all_params
    }
    meant = {
        word.partition("=")[0] for ours in ELSEWHERE.values() for word in re.split("[ |]", ours)
    }
    assert meant <= known
    of_other_commands = {"prompts", "group_size", "episodes", "test_tasks"}
    of_other_commands |= {"eval.tasks", "eval.test_tasks"}
    assert not {*ELSEWHERE, *ABSENT} & known - {"data", "batch_size", *of_other_commands}
    assert not ELSEWHERE.keys() & ABSENT.keys()


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "run.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return f"config={path}"

    return write


@pytest.mark.parametrize("word", ["steps=3", "optimizer.lr=1", "save_every=2", "algo=grpo"])
def test_a_key_of_another_command_is_not_taken_for_the_warm_starts(word):
    with pytest.raises(UsageError) as refused:
        parse(EvaluateConfig, ["env=toy-copy", word], command="c", presets={})
    name = word.split("=")[0]
    assert str(refused.value) == (
        f"unknown key {name!r}. Another command has it; --help=all lists this one's."
    )


SIBLINGS = {
    "sft": (SFTConfig, []),
    "eval": (EvaluateConfig, []),
    "distill": (DistillConfig, []),
    "train": (TrainConfig, []),
    "dpo": (DPOConfig, ["model=m", "data=d"]),
    "reward_model": (RewardModelConfig, ["model=m", "data=d"]),
    "judge": (JudgeConfig, ["model=m", "data=d"]),
    "step_labels": (StepLabelsConfig, ["model=m", "data=d"]),
}
OTHER = "Another command has it"


@pytest.mark.parametrize(
    ("command", "key", "meant"),
    [
        *(("sft", "eval.test_tasks", "test_tasks"), ("eval", "eval.test_tasks", "tasks")),
        *(("distill", "eval.test_tasks", "tasks"), ("train", "test_tasks", "eval.test_tasks")),
        *(("eval", "test_tasks", "tasks"), ("distill", "test_tasks", "tasks")),
        *(("eval", "eval.tasks", "tasks"), ("distill", "eval.tasks", "tasks")),
        *((name, "eval.test_tasks", OTHER) for name in ("dpo", "reward_model", "judge")),
        *((name, "test_tasks", OTHER) for name in ("dpo", "reward_model", "judge")),
        *(("sft", "prompts", "batch_size"), ("dpo", "prompts", "batch_size")),
        *(("eval", "group_size", "episodes"), ("distill", "group_size", "episodes")),
        *(("train", "episodes", "group_size"), ("sft", "texts.data", "data")),
        *(("train", "data", "env.tasks"), ("dpo", "env", OTHER), ("judge", "env", OTHER)),
        *(("reward_model", "env", OTHER), ("step_labels", "texts.data", "data")),
    ],
)
def test_a_key_that_a_command_names_otherwise_is_answered_with_its_own(command, key, meant):
    config_type, words = SIBLINGS[command]
    with pytest.raises(UsageError) as refused:
        parse(config_type, [*words, f"{key}=3"], command="c", presets={})
    said = meant if meant == OTHER else f"Did you mean {meant!r}?"
    assert str(refused.value).startswith(f"unknown key {key!r}. {said}")


def test_a_command_about_a_file_needs_no_environment_and_tests_what_is_asked():
    def parsed(config_type, *words):
        return parse(config_type, words, command="c", presets={})

    bare = parsed(SFTConfig, "data=f.jsonl", "model=m")
    assert (bare.env.env_id, bare.test_tasks, bare.out) == ("", 0, "runs/sft-{seed}")
    assert parsed(SFTConfig, *as_lines(bare).splitlines()) == bare
    assert SFTConfig(data="f.jsonl", model="m") == bare
    tested = parsed(SFTConfig, "data=f.jsonl", "model=m", "env=math", "test_tasks=8")
    assert (tested.env.env_id, tested.test_tasks) == ("math-v0", 8)
    assert parsed(SFTConfig).env.env_id == "code-sandbox-v0"
    assert parsed(StepLabelsConfig, "data=f.jsonl", "model=m").env.env_id == "math-v0"
    for words, says in (
        (["model=m", "test_tasks=8"], "env is empty, and test_tasks=8 needs an environment: give"),
        ([], "env is empty, and model=tiny is warm-started in an environment: give model=FOLDER"),
        (
            ["model=m", "partner=script", "partner.role=a", "partner.function=f.py:g"],
            "env is empty",
        ),
    ):
        with pytest.raises(UsageError, match=re.escape(says)):
            parsed(SFTConfig, "data=f.jsonl", *words)
    for config_type in (TrainConfig, EvaluateConfig, DistillConfig):
        with pytest.raises(UsageError, match="env is empty, and this command needs an environ"):
            parsed(config_type, "env=", "model=m")


@pytest.mark.parametrize(
    ("word", "near"),
    [("tasks=3", "eval.tasks"), ("policy.url=x", None), ("batch_size=2", "prompts")],
)
def test_a_key_of_another_command_keeps_its_hint_where_this_one_has_its_like(word, near):
    with pytest.raises(UsageError) as refused:
        parse(TrainConfig, ["env=toy-copy", word], command="c", presets={})
    assert "Another command" not in str(refused.value)
    assert near is None or f"Did you mean {near!r}?" in str(refused.value)


def test_layers_file_then_preset_then_command_line(write):
    file = write('env = "toy-copy"\nprompts = 5\nsteps = 6\nseed = 3\n[eval]\nevery = 7\n')
    config = train("steps=9", file, "preset=smoke")
    assert config.steps == 9, "the command line wins over both"
    assert (config.prompts, config.eval.every) == (8, 2), "the preset wins over the file"
    assert config.seed == 3, "the file wins over defaults"


def test_tables_names_and_every_type(write):
    config = train(
        write(
            """
            deterministic = true
            dtype = "float32"
            [env]
            name = "toy-chatter"
            tool_s = 2
            [algo]
            name = "ppo"
            advantage.lam = 1
            surrogate.dual_clip = 3.0
            [optimizer]
            lr = 1e-7
            betas = [0.5, 0.75]
            """
        )
    )
    assert config.env.env_id == "toy-chatter-v0"
    assert config.env.options.tool_s == 2.0
    assert (
        config.algo.name,
        config.algo.row.advantage.lam,
        config.algo.row.surrogate.dual_clip,
    ) == ("ppo", 1.0, 3.0)
    assert (config.optimizer.lr, config.optimizer.betas) == (1e-7, (0.5, 0.75))
    assert config.deterministic is True
    assert config.dtype == "float32"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = ", " is not valid TOML: "),
        (b"model = '\xff'", " is not valid TOML: "),
        ("step = 3", "unknown key 'step'. Did you mean 'steps'?"),
        ("steps = 1.5", "steps ('1.5') must be of type int"),
        ("[sampling]\ntemperature = 'hot'", "sampling.temperature ('hot') must be of type float"),
        ("[optimizer]\nbetas = [1, 2, 3]", "optimizer.betas ('1,2,3') must be of type tuple"),
        ("[eval]\nevery = 0", "eval.every (0) must be >= 1"),
        ("sampling = 3", "sampling ('3') has settings of its own"),
    ],
)
def test_a_bad_file_is_one_line(write, text, message):
    with pytest.raises(UsageError) as refused:
        train("env=toy-copy", write(text))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("config_type", "words"),
    [
        (TrainConfig, ["env=toy-copy"]),
        (TrainConfig, ["env=toy-chatter", "env.mode=a b=c", "algo=ppo", "preset=smoke"]),
        (TrainConfig, ["env=toy-chatter", "algo=dr-grpo", "optimizer.betas=0.5,0.25", "seed=9"]),
        (SFTConfig, ["env=toy-copy", "data=x.jsonl", "max_seconds=1.5"]),
        (EvaluateConfig, ["env=toy-copy", "split=train", "sampling.temperature=0"]),
    ],
)
def test_a_resolved_configuration_reads_back_as_itself(config_type, words):
    config = parse(config_type, words, command="c", presets=PRESETS)
    lines = as_lines(config).splitlines()
    assert parse(config_type, lines, command="c", presets=PRESETS) == config
    # And it is whole: nothing is left to a default that may change.
    keys = [line.split("=")[0] for line in lines]
    assert len(keys) == len(set(keys))
    assert {"env", "env.max_turns", "sampling.slots", "seed"} <= set(keys)


def leaves(value, prefix=""):
    """The keys of a configuration, as the command line has them."""
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            yield from leaves(inner, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


HELP = """
import sys
from rl.{command} import main
try:
    main(["env=search-qa", "--help=all"])
except SystemExit as end:
    assert end.code == 0
heavy = sorted({{"torch", "transformers", "vllm", "ray", "matplotlib"}} & set(sys.modules))
sys.stderr.write(f"{{len(sys.modules)}} {{heavy}}")
"""


@pytest.mark.parametrize(
    ("command", "config_type"),
    [("train", TrainConfig), ("sft", SFTConfig), ("eval", EvaluateConfig)],
)
def test_help_names_every_key_quickly_and_without_torch(command, config_type):
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(command=command)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    modules, heavy = done.stderr.split(" ", 1)
    assert heavy == "[]"
    # The cost of a start, measured independently of the machine: 677 modules take 0.8 s.
    assert int(modules) < 800
    config = parse(config_type, ["env=search-qa"], command="c", presets=PRESETS)
    shown = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    names = {
        key.replace("env.env_id", "env")
        .replace("env.options.", "env.")
        .replace("algo.name", "algo")
        .replace("algo.row.", "algo.")
        .replace("learner.name", "learner")
        .replace("cluster.name", "cluster")
        .replace("cluster.settings.", "cluster.")
        .replace("learner.settings.", "learner.")
        .replace("policy.name", "policy")
        .replace("policy.settings.", "policy.")
        .replace("partner.name", "partner")
        .replace("partner.settings.", "partner.")
        .replace("log.name", "log")
        .replace("log.settings.", "log.")
        for key in leaves(config)
    }
    assert names - {"env.split"} | {"config", "preset"} <= shown
    assert done.stdout.startswith(f"usage: python -m rl.{command} key=value ...\n\n")


def shown_keys(capsys, *words):
    """The help's lines by key."""
    with pytest.raises(SystemExit) as end:
        train(*words)
    assert end.value.code == 0
    text = capsys.readouterr().out
    return {line.split()[0]: line for line in text.splitlines() if re.match("  [a-z]", line)}, text


def test_help_shows_the_main_keys_and_says_where_the_others_are(capsys):
    short, text = shown_keys(capsys, "--help")
    whole, _ = shown_keys(capsys, "--help=all")
    assert 25 <= len(short) <= 40 < 100 < len(whole)
    assert {"env", "model", "algo", "steps", "out", "resume", "config", "preset"} <= set(short)
    assert set(short) < set(whole)
    assert f"{len(whole) - len(short)} more keys: --help=all" in text
    chosen, _ = shown_keys(capsys, "algo=ppo", "env=toy-chatter", "stall_s=9999", "--help")
    assert {"algo.advantage.lam", "env.tool_s", "stall_s"} <= set(chosen)
    assert not {"algo.advantage.lam", "stall_s"} & set(short)


def test_help_lists_the_names_of_choices_and_of_values(capsys):
    _, text = shown_keys(capsys, "--help=all")
    reported = " ".join(text.split())
    # Policies that other tests have registered come after these.
    assert re.search("One of: local, vllm-server, vllm-engine[.,]", reported)
    assert "One of: grpo, dr-grpo," in reported and "dapo" in reported
    assert re.search("One of: .*agent, .*code-sandbox, .*countdown, .*reasoning-gym/NAME", reported)
    assert "One of: files, ipc, nccl." not in reported, "of a policy that was not chosen"


def test_help_shows_chosen_values_and_their_layers(write, capsys):
    with pytest.raises(SystemExit) as end:
        train("env=toy-chatter", "algo=ppo", write("steps = 7"), "prompts=3", "--help")
    assert end.value.code == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert lines["steps"].split()[1] == "7"
    assert "run.toml)" in "".join(text.split())
    assert "  3 (the command line)  " in lines["prompts"]
    assert lines["algo.value.coef"].split()[1] == str(ALGORITHMS["ppo"].value.coef)
    assert lines["env.tool_s"].split()[1] == "0.02"


def test_a_bad_value_is_reported_before_the_help():
    with pytest.raises(UsageError, match="unknown algorithm"):
        train("env=toy-copy", "algo=grop", "--help")


@pytest.mark.parametrize(
    ("out", "path"),
    [
        ("runs/{env}-{algo}-{seed}", "runs/toy-copy-v0-grpo-3"),
        ("here", "here"),
        ("{seed}/{seed}", "3/3"),
    ],
)
def test_the_folders_name_is_filled_in(out, path):
    config = train("env=toy-copy", "seed=3", f"out={out}")
    assert str(run_path(config.out, config, config.algo.name)) == path


@pytest.mark.parametrize("out", ["{model}", "{", "{0}"])
def test_other_braces_are_refused(out):
    config = train("env=toy-copy", f"out={out}")
    with pytest.raises(UsageError) as refused:
        run_path(config.out, config, config.algo.name)
    assert str(refused.value) == f"out ({out}) may hold {{env}}, {{algo}} and {{seed}}"


EVERY_HELP = """
import importlib, sys
for command in sys.argv[1:]:
    try:
        code = importlib.import_module("rl." + command).main(["--help"])
    except SystemExit as end:
        code = end.code
    assert code == 0, command
    heavy = {"torch", "transformers", "matplotlib", "aiohttp", "tools.sandbox.make"}
    loaded = sorted(heavy & set(sys.modules))
    assert not loaded, (command, loaded)
"""
COMMANDS = ("train", "eval", "sft", "dpo", "reward_model", "distill", "step_labels", "judge")
COMMANDS += ("merge", "pipeline", "replay", "status")


def test_the_help_of_no_command_loads_torch_or_the_sandbox():
    words = [sys.executable, "-c", EVERY_HELP, *COMMANDS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def numeric(config_type, chosen, prefix=""):
    """Keys of all numbers among a command's settings, with int or float."""
    hints = typing.get_type_hints(config_type)
    for field in dataclasses.fields(config_type):
        key, hint = prefix + field.name, hints[field.name]
        if choice := field.metadata.get("choice"):
            inner, _, _ = choice.resolve(chosen.get(key, choice.default))
            yield from numeric(inner, chosen, f"{key}.")
        elif dataclasses.is_dataclass(hint):
            yield from numeric(hint, chosen, f"{key}.")
        else:
            yield from ((key, kind) for kind in (int, float) if kind in (hint, *get_args(hint)))


@pytest.mark.parametrize(
    ("config_type", "words"),
    [
        (TrainConfig, "env=code-sandbox partner=local partner.role=user"),
        (TrainConfig, "env=swe-mini policy=vllm-server algo=ppo"),
        pytest.param(
            TrainConfig, "env=code-sandbox policy=openai algo=dapo", marks=pytest.mark.nightly
        ),
        (SFTConfig, "env=code-sandbox model=m"),
        (DPOConfig, "data=d model=m"),
        (RewardModelConfig, "data=d model=m"),
        (JudgeConfig, "data=d model=m"),
        (ReplayConfig, "run=r"),
    ],
)
def test_no_number_is_negative_or_infinite_in_silence(config_type, words):
    chosen = dict(word.split("=") for word in words.split())
    accepted = []
    for key, kind in numeric(config_type, chosen):
        for value in ("-1",) if kind is int else ("-1", "nan", "inf", "-inf"):
            with contextlib.suppress(UsageError):
                parse(config_type, [*words.split(), f"{key}={value}"], command="c", presets={})
                accepted.append((key, value))
    known = {("env.seed", "-1"), ("optimizer.max_grad_norm", "inf")}
    assert set(accepted) <= known, accepted


@pytest.mark.parametrize("given", [{"optimizer": {"lr": 0}}, {"optimizer.critic_lr": 0.0}])
def test_python_refuses_a_learning_rate_of_zero(given):
    with pytest.raises(UsageError, match=r"^optimizer\.(critic_)?lr \(0.*leave it out"):
        TrainConfig(env="toy-copy", **given)


def test_a_recorded_zero_stays_the_default(tmp_path):
    """config.json of every version records 0 for a learning rate that was left out."""
    plain = json.loads(json.dumps(to_plain(train("env=toy-copy")), default=str))
    assert plain["optimizer"]["lr"] == plain["optimizer"]["critic_lr"] == 0
    (tmp_path / "config.json").write_text(json.dumps(plain))
    for word in (f"config={tmp_path}", f"resume={tmp_path}"):
        assert train(word).effective_optimizer == train("env=toy-copy").effective_optimizer
    config = train("env=toy-copy")
    assert dataclasses.replace(config, steps=3).optimizer == config.optimizer
