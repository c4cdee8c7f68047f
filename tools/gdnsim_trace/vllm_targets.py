"""Which names the vLLM hook takes hold of in which version, and a check that a source tree has them.

Checked in the sources of the releases named here. A layer's whole recurrence runs in one method, `_forward_core`; what
it calls tells which kernels its rows went through. Where only the place of a module changed, the versions share a
line's names.
"""

import ast
import dataclasses
import os
import re

from .model import TraceError

CONV_UPDATE, CONV_PREFILL = "causal_conv1d_update", "causal_conv1d_fn"
PACKED, GATING = "fused_recurrent_gated_delta_rule_packed_decode", "fused_sigmoid_gating_delta_rule_update"
CORE = "_forward_core"
DRAFT_CORES = (
    "_forward_core_decode_spec_fused_norm",
)  # run in place of it for steps of drafts alone, where there are such
CORE_ARGUMENTS = ["self", "mixed_qkv", "b", "a", "core_attn_out"]
METADATA_FIELDS = (
    "num_prefills",
    "num_decodes",
    "num_decode_tokens",
    "num_actual_tokens",
    "spec_sequence_masks",
    "non_spec_state_indices_tensor",
)
RUNNERS = {"vllm.v1.worker.gpu_model_runner": "input_batch", "vllm.v1.worker.gpu.model_runner": "prepare_inputs"}


@dataclasses.dataclass(frozen=True)
class Target:
    versions: tuple  # minor versions whose sources were checked
    layer_module: str
    layer_class: str
    kernels: str  # folder of the recurrent kernels
    sentinel: str  # which index marks a row that the kernels skip
    mixed: str  # where the decode rows of a step with a prefill go


TARGETS = (
    Target(
        ("0.19",),
        "vllm.model_executor.layers.mamba.gdn_linear_attn",
        "GatedDeltaNetAttention",
        "vllm.model_executor.layers.fla.ops",
        "minus_one",
        "the chunk kernel: such steps cannot be replayed",
    ),
    Target(
        ("0.26", "0.33"),
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn",
        "QwenGatedDeltaNetAttention",
        "vllm.third_party.flash_linear_attention.ops",
        "nonpositive",
        GATING,
    ),
)
CONV_MODULE, NORM_MODULE = "vllm.model_executor.layers.mamba.ops.causal_conv1d", "vllm.model_executor.layers.layernorm"
METADATA_MODULE = "vllm.v1.attention.backends.gdn_attn"


def target_of(version):
    """The names of that version."""
    minor = ".".join(str(version).split(".")[:2])
    for target in TARGETS:
        if minor in target.versions:
            return target
    known = ", ".join(f"{each}.x" for target in TARGETS for each in target.versions)
    raise TraceError(f"vLLM {version}: its gated delta layers were not checked for capture (checked: {known})")


# A source tree.


class Tree:
    def __init__(self, root):
        self.root = root

    def text(self, module):
        base = os.path.join(self.root, *module.split("."))
        for path in (base + ".py", os.path.join(base, "__init__.py")):
            if os.path.exists(path):
                with open(path, encoding="utf-8") as stream:
                    return stream.read()
        return None

    def parsed(self, module):
        text = self.text(module)
        return None if text is None else ast.parse(text)


def names_of(tree):
    """Functions, classes and imports at a module's top level."""
    found = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update({(alias.asname or alias.name): node for alias in node.names})
    return found


def arguments_of(function):
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def member(cls, name):
    return next((node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == name), None)


def function_problems(tree, module, name, wanted):
    parsed = tree.parsed(module)
    function = names_of(parsed).get(name) if parsed else None
    if not isinstance(function, ast.FunctionDef):
        return [f"{module}: expected a function {name}"]
    missing = [argument for argument in wanted if argument not in arguments_of(function)]
    return [f"{module}.{name}: expected an argument {argument}" for argument in missing]


def layer_problems(tree, target):
    parsed = tree.parsed(target.layer_module)
    if parsed is None:
        return [f"{target.layer_module}: expected a module"]
    names = names_of(parsed)
    problems = [
        f"{target.layer_module}: expected a name {name}"
        for name in (CONV_UPDATE, CONV_PREFILL, PACKED, GATING, "get_forward_context", target.layer_class)
        if name not in names
    ]
    cls = names.get(target.layer_class)
    core = member(cls, CORE) if isinstance(cls, ast.ClassDef) else None
    if core is None or arguments_of(core) != CORE_ARGUMENTS:
        problems.append(f"{target.layer_module}.{target.layer_class}.{CORE}: expected arguments {CORE_ARGUMENTS}")
    elif "self.kv_cache" not in ast.unparse(core):
        problems.append(f"{target.layer_module}.{target.layer_class}.{CORE}: expected self.kv_cache")
    return problems


def kernel_problems(tree, target):
    problems = function_problems(
        tree, CONV_MODULE, CONV_UPDATE, ("x", "conv_state", "conv_state_indices", "num_accepted_tokens")
    )
    problems += function_problems(tree, CONV_MODULE, CONV_PREFILL, ("x", "conv_states", "cache_indices"))
    problems += function_problems(
        tree, target.kernels + ".fused_recurrent", PACKED, ("mixed_qkv", "initial_state", "out", "ssm_state_indices")
    )
    problems += function_problems(
        tree, target.kernels + ".fused_sigmoid_gating", GATING, ("initial_state", "num_accepted_tokens", "cu_seqlens")
    )
    rule = {"nonpositive": "state_idx <= 0", "minus_one": "state_idx < 0"}[target.sentinel]
    for name in ("fused_recurrent", "fused_sigmoid_gating"):
        text = tree.text(f"{target.kernels}.{name}") or ""
        rules = set(re.findall(r"if (state_idx <=? 0)", text))
        if rules != {rule}:
            problems.append(f"{target.kernels}.{name}: expected rows to be skipped by '{rule}', found {sorted(rules)}")
    return problems


def engine_problems(tree):
    problems = []
    parsed = tree.parsed(METADATA_MODULE)
    cls = names_of(parsed).get("GDNAttentionMetadata") if parsed else None
    fields = {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign)} if cls else set()
    problems += [
        f"{METADATA_MODULE}.GDNAttentionMetadata: expected a field {name}"
        for name in METADATA_FIELDS
        if name not in fields
    ]
    parsed = tree.parsed(NORM_MODULE)
    norm = names_of(parsed).get("RMSNormGated") if parsed else None
    if norm is None or not all(f"self.{name} = " in ast.unparse(norm) for name in ("eps", "activation", "weight")):
        problems.append(f"{NORM_MODULE}.RMSNormGated: expected eps, activation and weight")
    for module, name in RUNNERS.items():
        parsed = tree.parsed(module)
        runner = names_of(parsed).get("GPUModelRunner") if parsed else None
        if runner is None or member(runner, "execute_model") is None or f"self.{name}" not in ast.unparse(runner):
            problems.append(f"{module}.GPUModelRunner: expected execute_model and {name}")
    return problems


def check_sources(root, version=None):
    """(version, [what the tree lacks]). `root` holds the folder vllm; its version comes from vllm/_version.py unless
    given.
    """
    tree = Tree(root)
    if version is None:
        found = re.search(r"version = ['\"]([^'\"]+)", tree.text("vllm._version") or "")
        if not found:
            raise TraceError(f"{root}: expected vllm/_version.py with a version (or give one)")
        version = found[1]
    target = target_of(version)
    return version, layer_problems(tree, target) + kernel_problems(tree, target) + engine_problems(tree)
