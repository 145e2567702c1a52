"""CFG003: precision settings that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.precision import precision_settings
from stayfinite.findings.subjects.config_file import ConfigFile, ConfigSet, Entry, KeyRead
from stayfinite.rules.config.phrases import at, place, shown


class PrecisionContradiction(Rule[ConfigSet]):
    """Settings of the precision contradict each other, in one file or between the files of a project.

    ## What it finds
    fp16 and bf16 both on; amp on while fp16 is off and another setting says bf16; `mixed_precision: no`
    beside fp16 or bf16 on; a training file, a DeepSpeed file and an Accelerate file that name different
    precisions; weights in float16 together with fp16 training.

    ## Why it is bad
    Only one of them takes effect, and which one depends on the code. Autocast that is switched on by hand
    uses float16 on a GPU whatever the file says, and without a GradScaler the first overflow goes into the
    weights.

    ## Example
    `amp: true`, `fp16: false`, `mixed_precision: bf16`

    ## The fix
    One setting, read in one place, printed at the start; then check the dtype that autocast really uses
    (`torch.get_autocast_dtype`).

    ## The popular fix that does not work
    Declaring them "aligned" because the file now says the same thing three times.

    ## References
    pytorch/pytorch#40497; Accelerate: mixed_precision of the launcher and of Accelerator()
    """

    code = "CFG003"
    name = "precision-contradiction"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR

    def check(self, subject: ConfigSet) -> Iterator[Finding]:
        said: list[tuple[str, Entry]] = []
        for config in subject.configs:
            mine = list(precision_settings(config))
            clash = _clash(mine)
            if clash is not None:
                first, second = clash
                yield self.finding(
                    f"{shown(second[1])} contradicts {shown(first[1])} ({place(first[1], second[1])}): "
                    f"{second[0]} or {first[0]}?",
                    fix="keep one precision setting, print it at the start, and check what "
                    "autocast really uses",
                    evidence={"settings": [shown(entry) for _, entry in mine]},
                    **at(second[1]),
                )
            elif mine:
                said.append(mine[0])
            yield from self._switched_by_hand(config, mine, subject.reads.get(config.path, {}))
        for precision, entry in said[1:]:
            if precision != said[0][0] and _of_one_run(subject, said[0][1], entry):
                other = said[0][1]
                yield self.finding(
                    f"{shown(entry)} means {precision}, but {other.file}:{other.line} says "
                    f"{shown(other)} ({said[0][0]})",
                    fix="make the files agree; the launcher's file and the script's both take effect",
                    evidence={"here": precision, "there": said[0][0]},
                    **at(entry),
                )

    def _switched_by_hand(
        self, config: ConfigFile, mine: list[tuple[str, Entry]], reads: dict[str, list[KeyRead]]
    ) -> Iterator[Finding]:
        """amp on, fp16 off and bf16 named elsewhere: autocast by hand takes its default, float16, without a scaler."""
        amp = config.first("amp", "use_amp")
        off = config.first("fp16", "use_fp16")
        named = next((entry for precision, entry in mine if precision == "bf16"), None)
        if amp is None or amp.flag is not True or off is None or off.flag is not False or named is None:
            return
        if reads.get(amp.word) and all(read.effective is False for read in reads[amp.word]):
            return  # nothing reads amp with these settings
        yield self.finding(
            f"{shown(amp)}, {shown(off)} and {shown(named)} ({place(named, amp)}) do not say "
            "one thing: autocast that is "
            "switched on by hand runs in float16, its default on a GPU, and nothing asks for a GradScaler",
            fix="one setting: bf16 with autocast(dtype=torch.bfloat16), or fp16 with a GradScaler",
            evidence={"settings": [shown(amp), shown(off), shown(named)]},
            **at(amp),
        )


def _clash(said: list[tuple[str, Entry]]) -> tuple[tuple[str, Entry], tuple[str, Entry]] | None:
    for at_most, second in enumerate(said):
        for first in said[:at_most]:
            one_class = len(second[1].path) > 1 and first[1].path[:-1] == second[1].path[:-1]
            together = first[1].file == second[1].file or one_class
            if first[0] != second[0] and together and _same_level(first[1], second[1]):
                return first, second
    return None


def _same_level(a: Entry, b: Entry) -> bool:
    """Not one in an alternative section (debug, accelerated) that takes the other's place."""
    if a.word == b.word == "enabled":  # fp16.enabled and bf16.enabled of one DeepSpeed file
        return a.path[:-2] == b.path[:-2]
    if a.file.endswith(".py") and len(a.path) > 1 and len(b.path) > 1 and a.path[0] != b.path[0]:
        return False  # two classes, or two dicts, of one module: presets to choose from
    return a.word != b.word or a.path[:-1] == b.path[:-1]


def _of_one_run(together: ConfigSet, a: Entry, b: Entry) -> bool:
    """Files that belong to one run: a launcher's file beside the script's. Two presets are alternatives."""
    kinds = {config.path: config.kind for config in together.configs}
    return {kinds.get(a.file), kinds.get(b.file)} & {"deepspeed", "accelerate"} != set() and (
        kinds.get(a.file) != kinds.get(b.file)
    )
