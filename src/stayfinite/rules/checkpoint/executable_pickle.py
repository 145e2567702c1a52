"""CKP021: a pickle that names code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint

# Modules and functions that a checkpoint has no use for, and that run commands, code or files when loaded.
_HOSTILE = re.compile(
    r"^(os|nt|posix|subprocess|pty|shutil|socket|sys|importlib|runpy|ctypes|webbrowser|platform|commands|pickle|"
    r"_pickle|code|timeit|pdb|cProfile|profile|trace|multiprocessing|asyncio|http|urllib|requests|tempfile|pip)\."
    r"|^(builtins|__builtin__)\.(eval|exec|compile|open|__import__|getattr|setattr|delattr|globals|locals|vars|"
    r"input|breakpoint|apply|execfile|file|memoryview)$"
    r"|^(torch\.(load|hub|serialization\.load|utils\.cpp_extension|jit)|numpy\.(load|testing))(\.|$)"
    r"|^operator\.(attrgetter|methodcaller|itemgetter)$|^functools\.(partial|reduce)$|^types\.(FunctionType|CodeType)$"
)


class ExecutablePickle(Rule[Checkpoint]):
    """Loading this file needs classes or functions that `torch.load(weights_only=True)` refuses.

    ## What it finds
    The names of globals in the pickle that are not tensors and plain containers. Names that run code (os.system,
    eval, subprocess) are errors; others, such as a class of the project or numpy, are information. The scan itself
    executes and imports none of them.

    ## Why it is bad
    A pickle calls what it names. A checkpoint from somebody else that names os.system runs a command on the machine
    that loads it.

    ## Example
        torch.load("downloaded.pt", weights_only=False)

    ## The fix
    Do not load it if you do not know who wrote it. For your own: save plain state (state_dict, numbers, lists), or
    use safetensors; where a class is really needed, `torch.serialization.add_safe_globals([TheClass])`.

    ## The popular fix that does not work
    `weights_only=False`: it removes the message by removing the protection.

    ## References
    torch.load documentation, weights_only; Python pickle documentation, warning at the top
    """

    code = "CKP021"
    name = "executable-pickle"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.INFO

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        for problem in subject.problems:
            if problem.what != "refused-global":
                continue
            names = [str(name) for name in problem.evidence.get("globals", [])]
            hostile = [name for name in names if _HOSTILE.match(name)]
            shown = ", ".join((hostile or names)[:5])
            more = f" and {len(hostile or names) - 5} more" if len(hostile or names) > 5 else ""
            yield self.finding(
                f"loading it would run {shown}{more}; nothing was executed here"
                if hostile
                else f"torch.load(weights_only=True) refuses it: it names {shown}{more} (read here without them)",
                fix="do not load this file; get it again from a source you trust"
                if hostile
                else "save plain state (state_dict, numbers, lists) or safetensors; see add_safe_globals for your own",
                evidence={"globals": names, "hostile": hostile},
                file=problem.file,
                severity=Severity.ERROR if hostile else Severity.INFO,
            )
