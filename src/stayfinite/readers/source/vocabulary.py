"""The words the interpreter knows: which torch functions keep values, which are looked at, which modules do what."""

from __future__ import annotations

import re

# The result holds (some of) the elements of its first argument.
KEEPS = frozenset(
    [
        "view", "reshape", "squeeze", "unsqueeze", "permute", "transpose", "t", "expand", "expand_as",
        "contiguous", "clone", "flatten", "unflatten", "cuda", "cpu", "float", "double", "gather",
        "index_select", "take", "take_along_dim", "narrow", "select", "masked_select", "roll", "flip",
        "repeat", "repeat_interleave", "tile", "movedim", "swapaxes", "broadcast_to", "requires_grad_",
        "as_tensor", "numpy", "copy", "from_numpy", "detach_", "atleast_1d", "ravel", "view_as",
        "reshape_as", "tolist", "retain_grad", "share_memory_", "pin_memory", "unfold", "diagonal", "diag",
        "rot90", "quantile", "median", "sort_values", "checkpoint",
    ]
)  # fmt: skip
PIECES = frozenset(["chunk", "split", "unbind", "tensor_split", "hsplit", "vsplit", "dsplit"])
# Recorded for the rules, whatever goes in.
WATCHED = frozenset(
    [
        "log", "log2", "log10", "log1p", "xlogy", "logit", "sqrt", "rsqrt", "pow", "exp", "expm1", "exp2",
        "acos", "arccos", "asin", "arcsin", "atanh", "arctanh", "acosh", "arccosh", "atan2", "arctan2",
        "erfinv", "digamma", "lgamma", "polygamma", "tan", "norm", "vector_norm", "matrix_norm", "normalize",
        "cosine_similarity", "std", "var", "std_mean", "var_mean", "where", "nan_to_num", "nansum",
        "nanmean", "reciprocal", "div", "true_divide", "divide", "softmax", "sigmoid", "einsum",
        "register_buffer", "eye", "Parameter", "ctc_loss", "CTCLoss", "cross_entropy", "nll_loss",
        "binary_cross_entropy", "BCELoss", "kl_div", "multinomial", "cdist", "cholesky", "inverse", "inv",
        "pinv", "svd", "eigh", "eig", "det", "logdet", "slogdet", "solve", "lstsq", "qr", "symeig",
        "cholesky_ex", "autocast", "GradScaler", "LambdaLR", "to_empty", "clip_grad_norm_",
        "clip_grad_value_", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "SGD",
        "Normal", "LogNormal", "Laplace", "Gamma", "Beta", "HalfNormal", "Cauchy", "StudentT", "sinh",
        "cosh", "square", "matrix_exp", "renorm", "clamp", "clamp_", "clip", "masked_fill",
        "scaled_dot_product_attention", "MultiheadAttention", "half", "bfloat16", "load_state_dict", "mean",
        "sum", "CosineEmbeddingLoss",
    ]
)  # fmt: skip
EPS_NAME = re.compile(
    r"(^|_)(eps|epsilon|tiny|jitter|smooth|smoothing|delta|floor|min|clip|minimum)($|_|\d)", re.IGNORECASE
)
MASK_NAME = re.compile(r"(^|_)(mask|masks|masked)($|_|\d)", re.IGNORECASE)
MAXIMUM_NAME = re.compile(r"(^|_)max(es|ima|imum|_?vals?|_?values?)?_?$", re.IGNORECASE)

# Layers whose output is unbounded, and layers that end in a known interval.
UNBOUNDED_LAYERS = frozenset(
    [
        "Linear", "Bilinear", "LazyLinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
        "ConvTranspose2d", "ConvTranspose3d",
    ]
)  # fmt: skip
PASSING_LAYERS = frozenset(
    ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "Flatten", "Unflatten", "Identity"]
)
ACTIVATIONS = {
    "ReLU": "relu",
    "ReLU6": "relu6",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softmax": "softmax",
    "Softmax2d": "softmax",
    "LogSoftmax": "log_softmax",
    "LogSigmoid": "logsigmoid",
    "Softplus": "softplus",
    "Hardsigmoid": "hardsigmoid",
    "Hardtanh": "hardtanh",
    "GELU": "gelu",
    "SiLU": "silu",
    "ELU": "elu",
    "LeakyReLU": "leaky_relu",
}
ADAPTIVE = frozenset(
    ["Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "SparseAdam"]
)
OPTIMIZERS = ADAPTIVE | frozenset(["SGD", "ASGD", "Rprop", "LBFGS", "Adafactor", "Muon"])
DISTRIBUTIONS_WITH_SCALE = frozenset(
    ["Normal", "LogNormal", "Laplace", "HalfNormal", "Cauchy", "StudentT", "Gamma", "Beta"]
)
HALF = {"float16": "float16", "half": "float16", "bfloat16": "bfloat16"}
FULL = {"float32": "float32", "float": "float32", "float64": "float64", "double": "float64"}
