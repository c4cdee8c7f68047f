"""One row of one decode step in numpy, from docs/arithmetic.md alone: contract `golden`, and how engines stray from it.

Nothing here is shared with the program under test, so traces made with it are a second opinion. All arrays are
float32; bf16 values are float32 with sixteen low zero bits. Every operation is one float32 operation rounded to nearest
even (R1); exp and log1p are rounded correctly (R4, R6) from float64, and from 40 decimal digits where float64 comes too
close to a tie.
"""

import dataclasses
import decimal

import numpy as np

f32 = np.float32
QK_EPS = f32(1e-6)
CANONICAL_NAN = np.uint32(0x7FFFFFFF)
DIGITS = decimal.Context(prec=40, Emin=-10000, Emax=10000)


@dataclasses.dataclass(frozen=True)
class Model:
    H: int = 2
    HV: int = 4
    K: int = 8
    V: int = 8
    W: int = 4
    layer_ids: tuple = (0, 1)
    blocks: int = 6
    scale: float = 0.35355339
    activation: str = "silu"
    use_qk_l2norm: int = 1
    state: str = "f32"
    conv: str = "bf16"
    act: str = "bf16"
    sentinel: str = "nonpositive"
    norm_eps: float = 1e-6
    norm_gate: str = "silu"
    inactive_conv_out: str = "zero"
    inactive_core_out: str = "zero"

    @property
    def dim(self):
        return 2 * self.H * self.K + self.HV * self.V

    def inactive(self, index, row, rows):
        """Rule A7."""
        beyond = row >= rows
        return beyond or {"nonpositive": index <= 0, "zero": index == 0, "minus_one": index == -1}[self.sentinel]


@dataclasses.dataclass(frozen=True)
class Rules:
    """How one row's step rounds, and what goes wrong in its formulas. The defaults are contract golden."""

    conv_product: str = "rounded"  # f32, fma
    conv_taps: str = "oldest"  # newest
    conv_bias: str = "first"  # last
    softplus: str = "log1p"  # log, naive (no branch for large s)
    beta: str = "f32"  # bf16
    params: str = "f32"  # bf16
    qk_norm: str = "divide"  # multiply, missing, race (q divided by k's root)
    qk_eps: str = "sum"  # mean, max, none
    scale: str = "after"  # before
    qk_dot: str = "chunks"  # sequential, narrowest, fma
    state_dot: str = "chunks"
    norm_dot: str = "chunks"
    update: str = "multiply-add"  # fma
    state_store: str = "declared"  # bf16
    head_map: str = "grouped"  # tiled
    norm: str = "vllm"  # hf, gate-first
    core_factor: float = 1.0  # on core_out before it is rounded
    decay: str = "exp"  # one (not applied), log (g taken as the factor), exp-exp (the factor taken as a log gate)


GOLDEN = Rules()


def canonical(x):
    """Rule R3: a NaN that arithmetic made has one word."""
    x = np.array(x, f32)
    x.view(np.uint32)[np.isnan(x)] = CANONICAL_NAN
    return x


def to_bf16(x):
    """f32 rounded to nearest even bf16 and widened again; a NaN becomes 0x7FFF."""
    words = np.array(x, f32).view(np.uint32).astype(np.uint64)
    rounded = ((words + 0x7FFF + ((words >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    rounded = np.where(np.isnan(x), np.uint32(0x7FFF0000), rounded)
    return rounded.view(f32)


def to_type(x, kind):
    """Rounds to a stored type (R2); f32 keeps the value."""
    return to_bf16(x) if kind == "bf16" else canonical(x)


def near_tie(wide):
    """Where rounding this float64 to float32 could be wrong by the error of a libm: within 2^-46 of a midpoint."""
    narrow = wide.astype(f32)
    away = np.where(wide >= narrow, f32(np.inf), f32(-np.inf))
    middle = (narrow.astype(np.float64) + np.nextafter(narrow, away).astype(np.float64)) / 2
    with np.errstate(invalid="ignore"):
        return np.isfinite(middle) & (np.abs(wide - middle) <= np.abs(wide) * 2.0**-46)


def by_digits(function, x):
    """The float32 nearest to a 40-digit result."""
    exact = function(decimal.Decimal(float(x)))
    wide = float(exact)
    narrow = f32(wide)
    for other in (np.nextafter(narrow, f32(np.inf)), np.nextafter(narrow, f32(-np.inf))):
        if abs(decimal.Decimal(float(other)) - exact) < abs(decimal.Decimal(float(narrow)) - exact):
            narrow = other
    return narrow


def correctly_rounded(function, digits, x):
    x = np.asarray(x, f32)
    with np.errstate(all="ignore"):
        wide = function(x.astype(np.float64))
        result = wide.astype(f32)
    for at in np.argwhere(near_tie(wide)):
        result[tuple(at)] = by_digits(digits, x[tuple(at)])
    return result


def exp(x):
    return correctly_rounded(np.exp, DIGITS.exp, x)


def log1p(x):
    return correctly_rounded(np.log1p, lambda d: DIGITS.ln(DIGITS.add(1, d)), x)


def log(x):
    return correctly_rounded(np.log, DIGITS.ln, x)


def fma(a, b, c):
    """float32 a*b + c rounded once: the product is exact in float64, the sum is rounded to odd there."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return np.where((lost != 0) & even & np.isfinite(total), odd, total).astype(f32)


def dot(x, y, order):
    """Sum of products over the last axis (rules D): `chunks` is golden's."""
    x, y = np.broadcast_arrays(np.asarray(x, f32), np.asarray(y, f32))
    n = x.shape[-1]
    if order == "fma":
        total = x[..., 0] * y[..., 0]
        for i in range(1, n):
            total = fma(x[..., i], y[..., i], total)
        return total
    products = x * y
    if order == "sequential":
        total = products[..., 0]
        for i in range(1, n):
            total = total + products[..., i]
        return total
    padded = np.zeros((*products.shape[:-1], -(-n // 32) * 32), f32)
    padded[..., :n] = products
    lanes = np.arange(32)
    sums = []
    for chunk in range(padded.shape[-1] // 32):
        part = padded[..., chunk * 32 : (chunk + 1) * 32]
        for width in (1, 2, 4, 8, 16) if order == "narrowest" else (16, 8, 4, 2, 1):
            part = part + part[..., lanes ^ width]
        sums.append(part[..., 0])
    total = sums[0]
    for other in sums[1:]:
        total = total + other
    return total


def sigmoid(x):
    return f32(1) / (f32(1) + exp(-np.asarray(x, f32)))


def conv_acc(model, rules, window, weight, bias):
    """Rules C: the window's W columns against the weights; [dim]."""
    acc = np.zeros(model.dim, f32)
    if bias is not None and rules.conv_bias == "first":
        acc = bias.astype(f32)
    order = range(model.W) if rules.conv_taps == "oldest" else range(model.W - 1, -1, -1)
    for j in order:
        if rules.conv_product == "fma":
            acc = fma(window[j], weight[:, j], acc)
            continue
        product = window[j] * weight[:, j]
        if rules.conv_product == "rounded":
            product = to_type(product, model.conv)
        acc = acc + product
    if bias is not None and rules.conv_bias == "last":
        acc = acc + bias
    return canonical(acc)


def unit(model, rules, x, measured=None):
    """Rules Q2, Q3 for one of q, k: [H, K]. `measured`: whose sum of squares it is, when not x's own."""
    if not model.use_qk_l2norm or rules.qk_norm == "missing":
        return x
    measured = x if measured is None else measured
    total = dot(measured, measured, rules.qk_dot)[:, None]
    if rules.qk_eps == "max":
        return x / np.maximum(np.sqrt(total), QK_EPS)
    if rules.qk_eps == "mean":
        total = total / f32(model.K)
    n = total if rules.qk_eps == "none" else total + QK_EPS
    if rules.qk_norm == "multiply":
        return f32(1) / np.sqrt(n) * x
    return x / np.sqrt(n)


def gates(rules, params, a, b):
    """Rule A2.4: beta, g, decay, each [HV]."""
    a_log, dt_bias = params["A_log"], params["dt_bias"]
    if rules.params == "bf16":
        a_log, dt_bias = to_bf16(a_log), to_bf16(dt_bias)
    s = a + dt_bias
    soft = log(f32(1) + exp(s)) if rules.softplus == "log" else log1p(exp(s))
    g = canonical((-exp(a_log)) * np.where(((s > 20) & (rules.softplus != "naive")) | np.isnan(s), s, soft))
    beta = canonical(sigmoid(b))
    if rules.beta == "bf16":
        beta = to_bf16(beta)
    decay = {"exp": lambda: exp(g), "one": lambda: np.ones_like(g), "log": lambda: g, "exp-exp": lambda: exp(exp(g))}
    return beta, g, canonical(decay[rules.decay]())


def gated_norm(model, rules, weight, core, z):
    """Rules N for every head: core and z [HV, V]."""
    gate = sigmoid(z) if model.norm_gate == "sigmoid" else z * sigmoid(z)
    o = core * gate if rules.norm == "gate-first" else core
    mean = dot(o, o, rules.norm_dot) / f32(model.V) + f32(model.norm_eps)
    rstd = f32(1) / np.sqrt(mean)
    if rules.norm == "hf":
        scaled = to_type(o * rstd[:, None], model.act)
        return canonical(rstd), to_type(to_type(scaled * weight, model.act) * gate, model.act)
    scaled = (o * rstd[:, None]) * weight
    if rules.norm == "vllm":
        scaled = scaled * gate
    return canonical(rstd), to_type(scaled, model.act)


def row_step(model, rules, params, inputs, recurrent, conv, window=None):
    """One active row: {tap: value} and the block's new recurrent [HV, V, K] and conv [W-1, dim].

    `window` replaces the stored columns in the sum, not in what is stored.
    """
    with np.errstate(all="ignore"):
        taps = {}
        x = inputs["x"].astype(f32) if model.conv == "f32" or model.act == "bf16" else to_bf16(inputs["x"])
        columns = conv if window is None else window
        acc = conv_acc(model, rules, [*columns, x], params["conv_weight"], params.get("conv_bias"))
        out = acc if model.activation == "none" else acc / (f32(1) + exp(-acc))
        taps["conv_acc"], taps["conv_out"] = acc, to_type(out, model.act)
        new_conv = np.stack([*conv[1:], x]).astype(f32)

        width = model.H * model.K
        q, k = (taps["conv_out"][i * width : (i + 1) * width].reshape(model.H, model.K) for i in (0, 1))
        v = taps["conv_out"][2 * width :].reshape(model.HV, model.V)
        scale = f32(model.scale)
        if rules.scale == "before":
            q = unit(model, rules, q * scale)
        else:
            q = unit(model, rules, q, k if rules.qk_norm == "race" else None) * scale
        k = unit(model, rules, k)
        taps["q"], taps["k"] = canonical(q), canonical(k)
        beta, g, decay = gates(rules, params, inputs["a"], inputs["b"])
        taps.update(beta=beta, g=g, decay=decay)

        heads = np.arange(model.HV)
        key = heads % model.H if rules.head_map == "tiled" else heads // (model.HV // model.H)
        kh, qh = k[key][:, None, :], q[key][:, None, :]
        state = decay[:, None, None] * recurrent
        dot_k = dot(state, kh, rules.state_dot)
        u = (v - dot_k) * beta[:, None]
        state = fma(kh, u[:, :, None], state) if rules.update == "fma" else state + u[:, :, None] * kh
        taps.update(dot_k=canonical(dot_k), u=canonical(u))
        taps["core_out"] = to_type(dot(state, qh, rules.state_dot) * f32(rules.core_factor), model.act)
        kind = "bf16" if rules.state_store == "bf16" else model.state
        new_recurrent = to_type(state, kind)
        add_norm(model, rules, params, inputs, taps)
    return taps, new_recurrent, new_conv


def add_norm(model, rules, params, inputs, taps):
    if "z" in inputs and "norm_weight" in params:
        z = inputs["z"].reshape(model.HV, model.V)
        taps["rstd"], taps["norm_out"] = gated_norm(model, rules, params["norm_weight"], taps["core_out"], z)


def inactive_row(model, params, inputs):
    """Rule A7: zeros, and the norm of zeros."""
    taps = {"conv_acc": np.zeros(model.dim, f32), "conv_out": np.zeros(model.dim, f32)}
    for name in ("q", "k"):
        taps[name] = np.zeros((model.H, model.K), f32)
    for name in ("beta", "g", "decay"):
        taps[name] = np.zeros(model.HV, f32)
    for name in ("dot_k", "u", "core_out"):
        taps[name] = np.zeros((model.HV, model.V), f32)
    with np.errstate(all="ignore"):
        add_norm(model, GOLDEN, params, inputs, taps)
    return taps
