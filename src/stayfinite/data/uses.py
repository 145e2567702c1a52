"""What an array is for: from its name, its type and its shape."""

from __future__ import annotations

import re
from pathlib import PurePath

from stayfinite.findings.subjects.data_set import Use

_LABEL = re.compile(
    r"(^|[._/ ])(labels?|targets?|y|ys|cls|class(es)?|class_?ids?|gt|category|categories)(_ids?)?([._/ ]|$)",
    re.I,
)
_BOX = re.compile(r"(^|[._/ ])(gt_)?(b?box(es)?|bboxes)([._/ ]|$)", re.I)
_LENGTH = re.compile(r"len(gth)?s?$", re.I)
_EMBEDDING = re.compile(r"emb(ed(ding)?s?)?|feat(ure)?s?|latents?|vectors?|hidden|cls_tokens?|repr", re.I)
_UNNAMED = ("array", "data")
"""What readers call the only array of a file: then the file has the name."""
_OTHER = re.compile(
    r"mask|(^|[._/ ])(ids?|index|indices|idx|positions?|step|epoch|rng\w*|seed|time\w*)([._/ ]|$)", re.I
)


def use_of(name: str, dtype: str, shape: tuple[int, ...], file: str = "") -> Use:
    """Vectors that are named so, or a file that is, make an embedding cache."""
    if name in _UNNAMED and file:
        name = PurePath(file).stem
    floating = dtype.startswith(("float", "bfloat", "complex", "double", "half"))
    if _BOX.search(name) and len(shape) >= 2 and shape[-1] == 4:
        return Use.BOX
    if _LENGTH.search(name) and len(shape) <= 1:
        return Use.LENGTH
    if _LABEL.search(name):
        return Use.LABEL if not floating or len(shape) <= 1 else Use.OTHER
    if _OTHER.search(name) or dtype == "bool":
        return Use.OTHER
    if floating and len(shape) == 2 and (_EMBEDDING.search(name) or _EMBEDDING.search(file)):
        return Use.EMBEDDING
    if floating or dtype == "uint8":
        return Use.INPUT if shape else Use.OTHER
    return Use.OTHER
