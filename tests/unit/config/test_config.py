"""What a user sees of deployment files: what is served, what is noted, and the one line that refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_lab.config.deployment_file import AnswerSettings, Latency
from inference_lab.config.models import Loaded, load
from inference_lab.console import UserError
from inference_lab.core.engine.deployment_spec import PrefixAffinity, RoundRobin, TimeCorrection
from inference_lab.core.faults.directive import parse_directive
from inference_lab.core.faults.plan import FaultPlan
from tests.support.paths import ROOT

CONFIGS = ROOT / "configs"

SCHEDULER = """
[scheduler]
max_num_batched_tokens = 8192
max_num_seqs = 256
policy = "fcfs"
enable_chunked_prefill = true
block_size = 16
"""
LLAMA = f'model = "llama-3.1-8b-instruct"\n{SCHEDULER}\n[hardware.gh200]\n'
INLINE_MODEL = """
[model]
name = "Tiny"
hidden_dim = 64
max_seq_len = 100
weights = [{ precision = "bf16", active_params = 10, resident_params = 10 }]
layers = [{ kind = "attention", count = 1, heads = 1, head_dim = 8, kv_heads = 1, kv_precision = "bf16" }]
"""


def write(directory: Path, **files: str) -> str:
    for name, text in files.items():
        (directory / f"{name}.toml").write_text(text)
    return str(directory)


def refusal(directory: Path, text: str, hardware: str | None = None) -> str:
    """The message that refuses `text` as a file, without the directory in front."""
    file = directory / "x.toml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load(str(file), hardware)
    message = str(caught.value)
    assert message.isprintable()
    return message.removeprefix(f"{directory}/")


# Shipped files with [latency], which are served whatever --hardware says, and their formats.
CONSTANT = {"DeepSeek-V4-Flash-dsv4": "dsv4", "Qwen3-14B-hermes": "hermes"}


def test_every_shipped_file_is_served_on_its_first_entry_and_the_log_says_which() -> None:
    loaded = load(str(CONFIGS), None)
    assert len(loaded.models) == 38 + len(CONSTANT)
    assert {model.name: model.format for model in loaded.models if model.format != "lab"} == CONSTANT
    (note,) = loaded.notes
    assert "DeepSeek-V4-Flash=b200" in note
    assert "Llama-3.1-8B-Instruct=gh200" in note


def test_a_directory_leaves_out_files_without_the_named_hardware_and_says_so() -> None:
    loaded = load(str(CONFIGS), "b200")
    assert len(loaded.models) == 34 + len(CONSTANT)
    assert set(CONSTANT) <= {model.name for model in loaded.models}
    (note,) = loaded.notes
    assert note.endswith(
        "llama-3-70b-fp8.toml, llama-3-70b.toml, llama-3.1-8b-instruct.toml, qwen3-30b-a3b.toml"
    )


def test_hardware_that_no_file_of_a_directory_has_is_refused_also_beside_constant_latencies() -> None:
    with pytest.raises(
        UserError, match=r'^\S*configs: no \[hardware\] entry named "b20", expected one of .*b200'
    ):
        load(str(CONFIGS), "b20")


def test_a_single_file_without_the_named_hardware_is_refused(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path, LLAMA, "b200") == 'x.toml: no [hardware] entry named "b200", expected one of gh200'
    )


def test_a_directory_without_the_named_hardware_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, a=LLAMA, b=LLAMA)
    with pytest.raises(UserError, match=r'no \[hardware\] entry named "tpu", expected one of gh200'):
        load(path, "tpu")


def test_pairs_that_share_a_model_have_names_of_their_own() -> None:
    names = {Path(model.source).stem: model.name for model in load(str(CONFIGS), None).models}
    for stem in (
        "llama-3-70b-fp8",
        "qwen3.5-35b-a3b-fp8-dottxt",
        "qwen3.5-397b-a17b-fp8-dottxt",
        "qwen3.5-9b-dottxt",
    ):
        assert names[stem] == stem


def test_defaults_of_a_small_file(tmp_path: Path) -> None:
    (model,) = load(write(tmp_path, llama=LLAMA), "gh200").models
    assert model.name == "Llama-3.1-8B-Instruct"
    assert model.aliases == ()
    assert model.source == str(tmp_path / "llama.toml")
    assert model.context_limit_tokens == 131072
    assert model.fault is None
    assert model.answer == AnswerSettings(tokens=None, reasoning=0)
    assert model.latency is None
    deployment = model.deployment
    assert deployment is not None
    assert (deployment.tp, deployment.ep, deployment.replicas, deployment.dp_attention) == (1, 1, 1, False)
    assert deployment.router == RoundRobin()
    assert deployment.scheduler.gpu_memory_utilization == 0.9
    assert deployment.long_prefill_token_threshold == 0


def test_everything_a_file_can_say_is_read(tmp_path: Path) -> None:
    text = (
        'name = "mine"\naliases = ["a", "org/b"]\n'
        + LLAMA.replace("max_num_seqs", "max_model_len = 4096\nmax_num_partial_prefills = 2\nmax_num_seqs")
        + """
        spec = "h100"
        tp = 2
        ep = 2
        replicas = 0
        time_correction = { alpha = 2, beta = 0.5 }
        router = { policy = "prefix_affinity", max_load_ratio = 2 }
        [hardware.gh200.scheduler]
        policy = "SJF"
        [router]
        policy = "least_loaded"
        [fault]
        mode = "reset"
        after_chunks = 7
        [answer]
        tokens = 12
        reasoning = 8
        """
    )
    (model,) = load(write(tmp_path, llama=text), None).models
    assert (model.name, model.aliases, model.context_limit_tokens) == ("mine", ("a", "org/b"), 4096)
    assert model.fault is not None
    assert model.fault == FaultPlan((parse_directive("reset;after_chunks=7"),), every_leg=True)
    assert model.answer == AnswerSettings(tokens=12, reasoning=8)
    deployment = model.deployment
    assert deployment is not None
    assert deployment.hardware.name == "H100"
    assert (deployment.tp, deployment.ep, deployment.replicas) == (2, 2, 1)
    assert deployment.time_correction == TimeCorrection(alpha=2.0, beta=0.5)
    assert deployment.router == PrefixAffinity(max_load_ratio=2.0)
    assert deployment.scheduler.policy == "sof"
    assert deployment.long_prefill_token_threshold == 163  # 4 % of 4096


def test_a_file_with_latency_needs_no_scheduler_and_no_hardware(tmp_path: Path) -> None:
    path = write(tmp_path, tiny=f"latency = {{ ttft_ms = 7 }}\n{INLINE_MODEL}", llama=LLAMA)
    for hardware in (None, "gh200"):
        tiny = load(path, hardware).models[1]
        assert (tiny.name, tiny.context_limit_tokens) == ("Tiny", 100)
        assert tiny.latency == Latency(ttft_ms=7.0, itl_ms=5.0)
        assert tiny.deployment is None


def test_a_file_with_latency_may_name_hardware_without_a_scheduler(tmp_path: Path) -> None:
    path = write(tmp_path, tiny=f"latency = {{}}\n{INLINE_MODEL}\n[hardware.b200]\ntp = 1")
    assert [model.deployment for model in load(path, "b200").models] == [None]


def test_a_file_with_latency_is_served_whatever_the_named_hardware_is(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, llama=f"latency = {{}}\n{LLAMA}"), "b200")
    assert [model.deployment for model in loaded.models] == [None]
    assert loaded.notes == ()


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ('name = "Llama-3.1-8B-Instruct"', "Llama-3.1-8B-Instruct"),
        ('name = "mine"\naliases = ["Llama-3.1-8B-Instruct"]', "Llama-3.1-8B-Instruct"),
    ],
)
def test_two_files_with_one_name_are_refused_and_both_are_named(
    tmp_path: Path, second: str, named: str
) -> None:
    path = write(tmp_path, a=LLAMA, b=f"{second}\n{LLAMA}")
    with pytest.raises(UserError) as caught:
        load(path, None)
    assert f"{path}/a.toml" in str(caught.value)
    assert f"{path}/b.toml" in str(caught.value)
    assert f'"{named}"' in str(caught.value)


@pytest.mark.parametrize(
    ("names", "served"),
    [
        ((), ["one", "two", "Llama-3.1-8B-Instruct"]),
        (("two",), ["two"]),
        (("org/one",), ["one"]),
        (("Llama-3.1-8B-Instruct", "one", "org/one"), ["one", "Llama-3.1-8B-Instruct"]),
    ],
)
def test_of_a_directory_only_the_models_that_are_named_are_served(
    tmp_path: Path, names: tuple[str, ...], served: list[str]
) -> None:
    for file, more in (
        ("1", 'name = "one"\naliases = ["org/one"]'),
        ("2", 'name = "two"'),
        ("3", ""),
    ):
        text = f'model = "llama-3.1-8b-instruct"\n{more}\n[latency]\n'
        (tmp_path / f"{file}.toml").write_text(text)
    assert [model.name for model in load(str(tmp_path), None, names).models] == served


@pytest.mark.parametrize("name", ["nobody", "one", "LLAMA-3.1-8B-Instruct", ""])
def test_a_name_that_no_model_has_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    (tmp_path / "1.toml").write_text('model = "llama-3.1-8b-instruct"\n[latency]\n')
    with pytest.raises(UserError, match=f'^--model "{name}": no model of .*, expected one of Llama-3'):
        load(str(tmp_path), None, ["Llama-3.1-8B-Instruct", name])


def test_files_that_are_left_out_may_share_a_name_with_one_that_is_served(tmp_path: Path) -> None:
    other = LLAMA.replace("hardware.gh200", "hardware.h100")
    assert len(load(write(tmp_path, a=LLAMA, b=other), "h100").models) == 1


REFUSALS = {
    # top level
    "x = 1\n" + LLAMA: "x is an unknown key, expected one of model, name, aliases, scheduler, ",
    LLAMA.replace(
        'model = "', 'model = "no-'
    ): 'model is "no-llama-3.1-8b-instruct", which the catalog does not hold',
    LLAMA.replace(
        '"llama-3.1-8b-instruct"', '"../models/llama-3-70b"'
    ): 'model is "../models/llama-3-70b", which',
    LLAMA.replace('"llama-3.1-8b-instruct"', "5"): "model is 5, expected a string or a table",
    SCHEDULER + "[hardware.gh200]": "model is missing",
    'model = "llama-3-70b"\n[hardware.h100]': "scheduler is missing; only a file with [latency] does without",
    'model = "llama-3-70b"' + SCHEDULER: "hardware is missing; only a file with [latency] does without it",
    'model = "llama-3-70b"\nhardware = 3' + SCHEDULER: "hardware is 3, expected a table",
    'name = ""\n' + LLAMA: 'name is "", expected ',
    'name = "a\\nb"\n' + LLAMA: "name is 'a\\nb', expected printable characters",
    "aliases = [5]\n" + LLAMA: "aliases[0] is 5, expected a string",
    'format = "chatml"\n' + LLAMA: 'format is "chatml", expected one of lab',
    'dialect = "bard"\n' + LLAMA: 'dialect is "bard", expected one of lab, openai, vllm, dynamo, openrouter',
    # out of scope
    LLAMA + "[speculative]\n": "speculative: speculative decoding is not simulated; remove the table",
    LLAMA
    + "[hardware.gh200.decode_router]\n": "hardware.gh200.decode_router: separate prefill and decode pools",
    LLAMA + "[memory]\n": "memory: storage below GPU memory is not simulated; remove the table",
    LLAMA + 'spec = { name = "X", memory_bandwidth = 1, memory_capacity = 1, memory = {} }': (
        "hardware.gh200.spec.memory: storage below GPU memory is not simulated"
    ),
    # the scheduler's table
    LLAMA.replace("= 16", "= 0"): "scheduler.block_size is 0, expected an integer >= 1",
    LLAMA.replace("= 256", "= 0"): "scheduler.max_num_seqs is 0, expected an integer >= 1",
    LLAMA.replace("= 8192", "= 0"): "scheduler.max_num_batched_tokens is 0, expected an integer >= 1",
    LLAMA.replace("= 8192", "= 8192.0"): "scheduler.max_num_batched_tokens is 8192.0, expected an integer",
    LLAMA.replace(
        "= 8192", "= 4294967296"
    ): "scheduler.max_num_batched_tokens is 4294967296, expected an integer <= ",
    LLAMA.replace("= 8192", "= -1"): "scheduler.max_num_batched_tokens is -1, expected an integer >= 1",
    LLAMA.replace("= true", '= "yes"'): 'scheduler.enable_chunked_prefill is "yes", expected true or false',
    LLAMA.replace('"fcfs"', '"best"'): "scheduler.policy is 'best', expected one of fcfs, priority, sif",
    LLAMA.replace(
        "block_size", "blocksize"
    ): "scheduler.blocksize is an unknown key, expected one of max_num_batched",
    LLAMA.replace("block_size = 16", ""): "scheduler.block_size is missing",
    LLAMA.replace("block_size", "gpu_memory_utilization = 1.01\nblock_size"): (
        "scheduler.gpu_memory_utilization is 1.01, expected a number <= 1"
    ),
    LLAMA.replace("block_size", "gpu_memory_utilization = nan\nblock_size"): (
        "scheduler.gpu_memory_utilization is nan, expected a finite number"
    ),
    # [hardware.*], the entries that are not chosen too
    LLAMA + "[hardware.b200]\ntp = 1.5": "hardware.b200.tp is 1.5, expected an integer",
    LLAMA + "[hardware.b200]\ntpp = 1": "hardware.b200.tpp is an unknown key, expected one of tp, spec, ep",
    LLAMA + '[hardware."a b".scheduler]\nblock_size = "x"': (
        'hardware."a b".scheduler.block_size is "x", expected an integer'
    ),
    LLAMA + '[hardware.b200.router]\npolicy = "random"': (
        'hardware.b200.router.policy is "random", expected one of round_robin, least_loaded, prefix_affinity'
    ),
    LLAMA + "[hardware.b200.router]\nload_weight = 1": "hardware.b200.router.policy is missing",
    LLAMA + '[hardware.b200.router]\npolicy = "round_robin"\nload_weight = 1': (
        "hardware.b200.router.load_weight is an unknown key, expected one of policy"
    ),
    LLAMA + "[hardware.b200]\ntime_correction = { alpha = 0 }": (
        "hardware.b200.time_correction.alpha is 0, expected a number > 0"
    ),
    LLAMA + '[hardware.b200]\nspec = { name = "X", memory_bandwidth = inf, memory_capacity = 1 }': (
        "hardware.b200.spec.memory_bandwidth is inf, expected a finite number"
    ),
    LLAMA + "tp = 0": "hardware.gh200.tp is 0, expected an integer >= 1",
    LLAMA + "tp = 4\nep = 3": "hardware.gh200.ep is 3, expected a divisor of tp (4)",
    LLAMA + "replicas = 4294967295": "hardware.gh200.replicas is 4294967295, which makes 4294967295 workers",
    LLAMA.replace("gh200", "tpu"): 'hardware.tpu without a spec is "tpu", which the catalog does not hold',
    LLAMA + 'spec = "gpu"': 'hardware.gh200.spec is "gpu", which the catalog does not hold; expected a table',
    LLAMA + 'spec = { name = "X", memory_bandwidth = 1, memory_capacity = 1, flops_fp8 = 1 }': (
        "hardware.gh200.spec: Llama-3.1-8B-Instruct computes in bf16, but X has no bf16 FLOP rate"
    ),
    LLAMA + 'tp = 2\nspec = { name = "X", memory_bandwidth = 1, memory_capacity = 1, flops_bf16 = 1 }': (
        "hardware.gh200.tp is 2, but X has no fabric: expected 1"
    ),
    LLAMA + 'tp = 2\nspec = { name = "X", memory_bandwidth = 1, memory_capacity = 1, flops_bf16 = 1,'
    " fabric = { gpus_per_node = 1, scale_up = { bandwidth = 1 } } }": (
        "hardware.gh200.tp is 2, but X has no scale_out link: expected at most gpus_per_node (1)"
    ),
    # the model
    **{
        f"{INLINE_MODEL.replace(old, new)}{SCHEDULER}[hardware.gh200]": f"model.{message}"
        for old, new, message in (
            ("hidden_dim = 64", "hidden_dim = 0", "hidden_dim is 0, expected an integer >= 1"),
            ("max_seq_len = 100", "", "max_seq_len is missing"),
            ('"Tiny"', '""', 'name is "", expected'),
            (
                'precision = "bf16"',
                'precision = "fp7"',
                'weights[0].precision is "fp7", expected one of bf16, fp16, fp32, fp4, fp8',
            ),
            (
                "resident_params = 10",
                "resident_params = 9",
                "weights[0].resident_params is 9, expected at least active_params (10)",
            ),
            (
                "resident_params = 10",
                "resident_params = 10, routing = { routed_experts = 2, experts_per_tok = 3, moe_layers = 1 }",
                "weights[0].routing.routed_experts is 2, expected 0 or at least experts_per_tok (3)",
            ),
            ("heads = 1,", "heads = 0,", "layers[0].heads is 0, expected an integer >= 1"),
            ("attention", "conv", 'layers[0].kind is "conv", expected one of attention, mla, linear'),
            ("head_dim = 8, ", "", "layers[0].head_dim is missing"),
            ("kind =", "kin =", "layers[0].kind is missing"),
        )
    },
    # room for KV
    LLAMA.replace("block_size", "kv_cache_capacity = 2097151\nblock_size"): (
        "hardware.gh200.scheduler.kv_cache_capacity is 2097151, less than one block of 2097152 bytes per rank"
    ),
    LLAMA.replace("3.1-8b-instruct", "3-70b").replace("gh200", "h100"): (
        "hardware.h100.tp is 1, which leaves less than one block of 5242880 bytes per rank for KV"
    ),
    # our own tables
    LLAMA + '[fault]\nmode = "explode"': "fault: ",
    LLAMA + "[fault]\nafter_chunks = 3": "fault: mode is missing",
    LLAMA + '[fault]\nmode = "reset"\nutf8 = true': "fault: utf8 goes with cut_mid_frame only",
    LLAMA + "[answer]\ntokens = 0": "answer.tokens is 0, expected an integer >= 1",
    LLAMA + "[answer]\ncalls = 0": "answer.calls is 0, expected an integer >= 1",
    LLAMA + "[answer]\ncalls = 17": "answer.calls is 17, expected an integer <= 16",
    LLAMA + "[latency]\nttft_ms = -1": "latency.ttft_ms is -1, expected a number >= 0",
    LLAMA + '[latency]\nitl_ms = "5"': 'latency.itl_ms is "5", expected a number',
    # TOML itself
    "a = ": "not valid TOML: Invalid value (at end of document)",
    "a" * 3 + " = " + "9" * 5000: "not valid TOML: Exceeds the limit",
    "a = " + "[" * 5000: "nested too deeply",
}


@pytest.mark.parametrize(
    ("text", "expected"), REFUSALS.items(), ids=[text[:70] for text in REFUSALS.values()]
)
def test_a_bad_file_is_refused_in_one_line_that_names_key_value_and_remedy(
    tmp_path: Path, text: str, expected: str
) -> None:
    assert refusal(tmp_path, text).startswith(f"x.toml: {expected}")


@pytest.mark.parametrize("table", ["foo = 1\n" + LLAMA, LLAMA + "foo = 1", LLAMA + "spec = { foo = 1 }"])
def test_no_message_offers_a_key_that_is_always_refused(tmp_path: Path, table: str) -> None:
    message = refusal(tmp_path, table)
    assert "foo is an unknown key, expected one of " in message
    assert not re.search("speculative|decode_router|memory(?!_)", message)


def test_paths_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"name = '\xff'")
    cases = {
        "missing.toml": "no such file or directory",
        "": "a directory without any *.toml file",
        "nul\0": "no such file or directory",
        "bytes.toml": "not UTF-8: invalid start byte at byte 8",
    }
    for name, expected in cases.items():
        directory = tmp_path
        if not name:
            directory = tmp_path / "empty"
            directory.mkdir()
        with pytest.raises(UserError, match=re.escape(expected)) as caught:
            load(f"{directory}/{name}" if name else str(directory), None)
        assert str(caught.value).isprintable()


def test_what_is_neither_file_nor_directory_is_refused() -> None:
    with pytest.raises(UserError, match="/dev/null: neither a file nor a directory"):
        load("/dev/null", None)


def try_load(path: Path) -> Loaded | None:
    """Load, letting through only what a user may see: a result, or one printable line."""
    try:
        return load(str(path), None)
    except UserError as error:
        message = str(error)
    assert message.isprintable()
    return None


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "x.toml"


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"\xef\xbb\xbfname = 1")
@example("x\u2028 = 1".encode())
def test_no_bytes_make_loading_fail_otherwise(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(content)
    try_load(scratch)


SCALARS = (
    "0",
    "-1",
    "1",
    "3",
    "1e400",
    "nan",
    "-0.5",
    "true",
    '"fp8"',
    '""',
    "1979-05-27",
    "[]",
    "{}",
    "[[1]]",
    '"\\n"',
)
LINES: list[str] = sorted(
    {
        line.strip()
        for file in (*CONFIGS.glob("*.toml"), *(CONFIGS.parent / "inference_lab/catalog").glob("*/*.toml"))
        for line in file.read_text().splitlines()
    }
)


@st.composite
def near_files(draw: st.DrawFn) -> str:
    """A valid file with a few lines dropped, doubled, replaced, or given another value."""
    lines: list[Any] = (
        LLAMA + "tp = 2\n[fault]\nmode = 'reset'\n[latency]\nttft_ms = 3\n[router]\n"
    ).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        change = draw(st.sampled_from(("drop", "insert", "value", "key")))
        if change == "drop":
            del lines[place]
        elif change == "insert":
            lines.insert(place, draw(st.sampled_from(LINES)))
        elif change == "value":
            lines[place] = lines[place].partition("=")[0] + "= " + draw(st.sampled_from(SCALARS))
        else:
            lines[place] = draw(st.text(max_size=5)) + lines[place]
    return "\n".join(lines)


@given(near_files())
def test_no_nearly_valid_file_makes_loading_fail_otherwise(scratch: Path, text: str) -> None:
    scratch.write_text(text)
    try_load(scratch)
