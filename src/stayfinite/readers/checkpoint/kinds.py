"""What names say about a part of a checkpoint: optimizer, average, buffer, weight."""

from __future__ import annotations

import re

from stayfinite.findings.subjects.checkpoint import Kind

_BY_KEY = (
    (
        Kind.AVERAGE,
        re.compile(r"(^|[_.\-])(ema|swa|averaged?|shadow|polyak)([_.\-]|$)|emamodel|modelema", re.I),
    ),
    (Kind.SCHEDULER, re.compile(r"sched", re.I)),
    (Kind.OPTIMIZER, re.compile(r"optim|^opt$|_opt$|^opt_|fp32_flat_groups|^base_optimizer", re.I)),
    (Kind.SCALER, re.compile(r"scaler|amp_scaling|^amp$|MixedPrecision", re.I)),
    (Kind.RANDOM, re.compile(r"(^|_)rng|random_state|rng_state", re.I)),
    (
        Kind.OTHER,
        re.compile(r"^(callbacks|loops|args|config|cfg|hparams|hyper_parameters|history|metrics)$", re.I),
    ),
)
_AVERAGE_PREFIX = re.compile(r"^(ema|ema_model|model_ema|swa_model|swa|averaged?_model)\.", re.I)
_MODEL_KEYS = re.compile(
    r"^(model|module|net|network|state_?dict|model_state(_dict)?|weights|params|generator|discriminator)$"
)
_BUFFER_NAME = re.compile(
    r"running_(mean|var)$|num_batches_tracked$|(^|[._])masks?$|masked_bias$|inv_freq$|position_ids$"
    r"|relative_position_index$|(cos|sin)_cached$|n_averaged$"
)


def kind_of_section(key: str) -> Kind | None:
    """The kind of everything under this key; None where the name does not tell."""
    return next((kind for kind, pattern in _BY_KEY if pattern.search(key)), None)


def is_model_section(key: str) -> bool:
    """A key under which people keep a model's state dict."""
    return _MODEL_KEYS.match(key) is not None


def without_average_prefix(key: str) -> str:
    return _AVERAGE_PREFIX.sub("", key)


def kind_of_tensor(name: str, dtype: str) -> Kind:
    """Average, buffer or weight, where the section did not tell."""
    if _AVERAGE_PREFIX.match(name):
        return Kind.AVERAGE
    plain_number = not dtype.startswith(("float", "bfloat", "complex"))
    return Kind.BUFFERS if plain_number or _BUFFER_NAME.search(name) else Kind.WEIGHTS
