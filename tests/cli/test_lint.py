"""`stayfinite lint`: formats, exit codes, selection, suppression, settings, fixes, presets, and hostile input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stayfinite.cli import main

BAD = """import torch


def loss(x, y):
    p = torch.softmax(x, dim=-1)
    return -(y * torch.log(p)).sum()
"""
ONE_LINE = "import torch\n\n\ndef loss(x):\n    return torch.log(torch.softmax(x, dim=-1))  # kept\n"


def run(*arguments: str | Path, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, ["lint", *map(str, arguments)], input=answer)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(BAD, encoding="utf-8")
    return path


def test_text_names_file_line_column_and_what_to_do(script: Path) -> None:
    result = run(script)
    assert result.exit_code == 0, "a warning is no error"
    assert f"SRC002 {script}:6:18: " in result.stdout
    assert "what to do: use F.log_softmax" in result.stdout
    assert "1 warning in 1 source, 0 configurations, 6 lines" in result.stdout


def test_every_format_has_the_place(script: Path, tmp_path: Path) -> None:
    data = json.loads(run(script, "--format", "json").stdout)
    assert (data["findings"][0]["line"], data["findings"][0]["column"]) == (6, 18)
    assert (data["files"], data["unreadable"]) == (1, [])
    written = tmp_path / "out.sarif"
    assert run(script, "--format", "sarif", "--output", written).exit_code == 0
    result = json.loads(written.read_text())["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 6, "startColumn": 18}
    assert "line=6,col=18::" in run(script, "--format", "github").stdout


def test_errors_exit_with_one(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1e-5\nbatch_size: 3\n", encoding="utf-8")
    assert run(path).exit_code == 1
    assert run(path, "--ignore", "CFG001").exit_code == 0
    assert "CFG001" not in run(path, "--select", "SRC").stdout


def test_an_unknown_code_is_refused(script: Path) -> None:
    result = run(script, "--select", "SRC999")
    assert result.exit_code == 2
    assert "no rule is called 'SRC999'" in result.stderr


@pytest.mark.parametrize(
    ("comment", "shown"),
    [("# stayfinite: ignore[SRC002]", False), ("# stayfinite: ignore", False), ("# stayfinite: ignore[CFG001]", True)],
)  # fmt: skip
def test_a_comment_silences_its_line(script: Path, comment: str, shown: bool) -> None:
    script.write_text(BAD.replace(".sum()", f".sum()  {comment}"), encoding="utf-8")
    assert ("SRC002" in run(script).stdout) is shown


def test_a_comment_silences_a_file_and_a_setting(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("# stayfinite: ignore-file[SRC]\n" + BAD, encoding="utf-8")
    config = tmp_path / "b.yaml"
    config.write_text("lr: 1e-5  # stayfinite: ignore[CFG001]\nbatch_size: 2\n", encoding="utf-8")
    assert "nothing found in 1 source, 1 configuration" in run(tmp_path).stdout


def test_pyproject_selects_ignores_excludes_and_sets_thresholds(tmp_path: Path, script: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "bad.py").write_text(BAD, encoding="utf-8")
    (tmp_path / "config.yaml").write_text("lr: 1.0e-4\nstudent_temperature: 0.03\n", encoding="utf-8")
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.stayfinite]\nignore = ["SRC002"]\nexclude = ["old"]\n', encoding="utf-8")
    result = run(tmp_path)
    assert "SRC002" not in result.stdout and "CFG004" in result.stdout and "1 source," in result.stdout
    settings.write_text("[tool.stayfinite]\nstudent-temperature-floor = 0.01\n", encoding="utf-8")
    assert "CFG004" not in run(tmp_path).stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[tool.stayfinite]\nselect = "SRC"\n', "select must be a list"),
        ("[tool.stayfinite]\ntemperature = 3\n", "has no setting 'temperature'"),
        ("[tool.stayfinite.thresholds]\neps-flor = 1\n", "there is no threshold 'eps-flor'"),
        ('[tool.stayfinite]\neps-floor = "small"\n', "must be a number"),
        ("[tool.stayfinite\n", "not valid TOML"),
    ],
)
def test_wrong_settings_are_one_sentence(tmp_path: Path, script: Path, text: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    result = run(script)
    assert result.exit_code == 2
    assert said in result.stderr and result.stderr.count("\n") == 1


def test_fix_shows_a_diff_and_writes_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(ONE_LINE, encoding="utf-8")
    shown = run(path, "--fix")
    assert "+    return torch.log_softmax(x, dim=-1)  # kept" in shown.stdout
    assert "none written" in shown.stderr and path.read_text() == ONE_LINE
    assert run(path, "--fix", "--write").exit_code == 0
    assert path.read_text() == ONE_LINE.replace("log(torch.softmax(x, dim=-1))", "log_softmax(x, dim=-1)")
    assert "nothing found" in run(path).stdout
    assert run(path, "--write").exit_code == 2


def test_a_patch_is_in_the_json(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(ONE_LINE, encoding="utf-8")
    (finding,) = json.loads(run(path, "--format", "json").stdout)["findings"]
    assert finding["patch"].startswith("--- a/") and "+    return torch.log_softmax" in finding["patch"]


def test_presets_print_a_patch_that_applies(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    text = "lr: 1.0e-4   # the rate\nclip_norm: 5.0\nprecision: float16\nteacher_temperature: 0.02\nseed: 3\n"
    path.write_text(text, encoding="utf-8")
    mild, hard = run(path, "--preset", "conservative"), run(path, "--preset", "ultra")
    assert "+lr: 5.0e-5   # the rate" in mild.stdout and "+clip_norm: 1.0" in mild.stdout
    assert "+precision: bfloat16" in mild.stdout and "+precision: float32" in hard.stdout
    assert "+lr: 1.0e-5" in hard.stdout and "+clip_norm: 0.5" in hard.stdout
    assert "seed" not in "".join(line for line in hard.stdout.splitlines() if line.startswith("+"))
    assert path.read_text() == text
    assert run(tmp_path / "none.py", "--preset", "ultra").exit_code == 2


def test_keys_without_effect_need_a_source(tmp_path: Path) -> None:
    config, code = tmp_path / "config.yaml", tmp_path / "code"
    config.write_text("lr: 1.0e-4\nunused_key: 3\n", encoding="utf-8")
    code.mkdir()
    (code / "train.py").write_text("def f(config):\n    return config['lr']\n", encoding="utf-8")
    assert "CFG013" not in run(config).stdout
    assert (
        "unused_key: 3: the one source that reads settings never mentions this key"
        in run(config, "--source", code).stdout
    )
    missing = run(config, "--source", tmp_path / "nowhere")
    assert missing.exit_code == 2 and "no such file or folder" in missing.stderr


HOSTILE: dict[str, bytes] = {
    "binary.py": bytes(range(256)) * 20,
    "latin.py": "import torch\nx = 'é'\n".encode("latin-1"),
    "broken.py": b"import torch\ndef f(:\n",
    "parentheses.py": b"import torch\nx = " + b"(" * 5000,
    "signs.py": b"import torch\nx = " + b"-" * 30000 + b"1",
    "long_sum.py": b"import torch\nx = " + b" + ".join([b"y.log()"] * 20000),
    "empty.json": b"",
    "cut.json": b'{"lr": 1e-4, "b',
    "deep.json": b'{"lr":' * 50000,
    "brackets.json": b"[" * 100000,
    "deep.yaml": b"lr: " + b"[" * 50000,
    "tab.yaml": b"lr: 1.0\n\tb: 2\n",
    "deep.toml": b"lr = " + b"[" * 5000,
    "bomb.yaml": b"a: &a {lr: 1}\n"
    + b"".join(b"%c: &%c {p: *%c, q: *%c, r: *%c}\n" % (98 + i, 98 + i, 97 + i, 97 + i, 97 + i) for i in range(20)),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_named_and_ends_with_two(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(HOSTILE[name])
    result = run(path)
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stderr.startswith(f"not linted: {path}") and result.stderr.count("\n") == 1


def test_what_can_be_read_is_linted_all_the_same(tmp_path: Path) -> None:
    for name, raw in HOSTILE.items():
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    (tmp_path / "circle").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.py")
    with (tmp_path / "huge.py").open("wb") as handle:
        handle.truncate(1 << 31)
    with (tmp_path / "huge.json").open("wb") as handle:
        handle.truncate(1 << 31)
    (tmp_path / "good.py").write_text(BAD, encoding="utf-8")
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    (tmp_path / "tag.yaml").write_text(
        f"lr: !!python/object/apply:os.system ['touch {tmp_path}/ran']\nbatch_size: 2\n", encoding="utf-8"
    )
    result = run(tmp_path)
    assert result.exit_code == 0
    assert "SRC002" in result.stdout and "2 sources, 1 configuration" in result.stdout
    named = result.stderr
    assert all(f"{name}" in named for name in (*HOSTILE, "loop.py", "pipe.py", "huge.py", "huge.json"))
    assert not (tmp_path / "ran").exists()


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    result = run(tmp_path / "nothing.py")
    assert result.exit_code == 2 and "no such file or folder" in result.stderr
    other = tmp_path / "notes.txt"
    other.write_text("lr: 1e-5\n", encoding="utf-8")
    assert "neither Python nor a configuration" in run(other).stderr


def test_torch_is_not_imported(script: Path) -> None:
    code = (
        "import sys\nfrom stayfinite.cli import main\n"
        f"try:\n    main(['lint', {str(script)!r}])\nexcept SystemExit as end:\n    print(end.code)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\nprint('light')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("0\nlight\n"), done.stderr
