"""tools/check_headers.py: equal headers pass, each kind of difference is seen, and the installed ones agree."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
TOOL = REPOSITORY / "tools" / "check_headers.py"
CDEF = REPOSITORY / "ctcbind" / "bindings" / "cdef"

pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="no checkout around these tests")


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_headers", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_headers"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["check_headers"]


def header(text: str) -> str:
    """Our declarations in the dress of a real header: guards, macros, comments, other names for the parameters."""
    text = re.sub(r"^cudnnStatus_t (cudnn\w+\()", r"CUDNN_DEPRECATED cudnnStatus_t CUDNNWINAPI\n\1", text, flags=re.M)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = text.replace("const int hostLabels[],", "const int *theirLabels, /* labels, (in CPU memory); */")
    text = text.replace(" = 0,", " CUDNN_DEPRECATED_ENUM = 0, /**< the first one, {really} */")
    before = '#define CUDNN_DEPRECATED\n#if defined(__cplusplus)\nextern "C" {\n#endif\n'
    return f"{before}{text}\n#if defined(__cplusplus)\n}}\n#endif\n"


@pytest.fixture
def folder(tool, tmp_path):
    """folder(version, change): cuDNN headers of that version, as declared here but for what `change` does."""

    def make(version=(9, 28, 0), change=lambda text: text):
        numbers = dict(zip(("MAJOR", "MINOR", "PATCHLEVEL"), version, strict=True))
        defines = "".join(f"#define CUDNN_{part} {number}\n" for part, number in numbers.items())
        (tmp_path / "cudnn_version.h").write_text(defines, encoding="utf-8")
        statuses = tool.load_module(CDEF.parent / "cudnn_status.py")
        kind = statuses.cudnnStatus_t if version >= (9, 0, 0) else statuses.cudnnStatus_v8_t
        listed = ", ".join(f"{each.name} = {each.value}" for each in kind)
        text = header((CDEF / "cudnn.h").read_text(encoding="utf-8"))
        text = text.replace("typedef int cudnnStatus_t;", f"typedef enum {{ {listed} }} cudnnStatus_t;")
        names = tool.HEADERS[version[0]]
        for name in names:
            (tmp_path / name).write_text("", encoding="utf-8")
        (tmp_path / names[0]).write_text(change(text), encoding="utf-8")
        return tmp_path

    return make


def drop(text, *names):
    for name in names:
        text = re.sub(rf"[\w\s*]+\b{name}\([^;]*;", "", text)
    return text


@pytest.mark.parametrize("version", [(9, 28, 0), (9, 0, 0), (8, 5, 0)])
def test_equal_headers_pass(tool, folder, version, capsys):
    assert tool.main([str(folder(version))]) == 0
    assert "0 differences" in capsys.readouterr().out


CHANGES = {
    "a parameter's type": (
        lambda t: re.sub(r"(cudnnCTCLoss_v8\([^;]*)size_t", r"\1int", t),
        "cudnnCTCLoss_v8: declared as",
    ),
    "two parameters swapped": (
        lambda t: t.replace("size_t workSpaceSizeInBytes, void *workspace", "void *workspace, size_t size"),
        "cudnnCTCLoss_v8: declared as",
    ),
    "a parameter gone": (lambda t: t.replace("const void *probs,", "", 1), "cudnnCTCLoss: declared as"),
    "a const gone": (
        lambda t: t.replace("const cudnnTensorDescriptor_t tensorDesc, size_t", "cudnnTensorDescriptor_t d, size_t"),
        "cudnnGetTensorSizeInBytes: declared as",
    ),
    "what it returns": (lambda t: t.replace("size_t cudnnGetVersion", "int cudnnGetVersion"), "cudnnGetVersion"),
    "a function gone": (lambda t: drop(t, "cudnnCTCLoss"), "cudnnCTCLoss: declared here, and not in the header"),
    "a value": (lambda t: t.replace("SOFTMAX = 1", "SOFTMAX = 2"), "CUDNN_LOSS_NORMALIZATION_SOFTMAX is 1"),
    "a member gone": (lambda t: t.replace("CUDNN_DATA_DOUBLE = 1,", ""), "CUDNN_DATA_DOUBLE is not in the header"),
    "an enum gone": (lambda t: t.replace("cudnnSeverity_t;", "other_t;"), "cudnnSeverity_t: declared here"),
    "a field": (lambda t: t.replace("unsigned time_usec;", "unsigned long long time_usec;"), "cudnnDebug_t"),
    "a field's length": (lambda t: t.replace("reserved[15]", "reserved[16]"), "cudnnDebug_t"),
    "a callback": (lambda t: t.replace("const char *msg);", "char *msg);"), "cudnnCallback_t"),
    "a handle": (lambda t: t.replace("*cudnnHandle_t", "cudnnHandle_t"), "cudnnHandle_t"),
    "a status": (lambda t: t.replace("BAD_PARAM = 2000", "BAD_PARAM = 2100"), "CUDNN_STATUS_BAD_PARAM is 2000"),
    "a status gone": (lambda t: t.replace("CUDNN_STATUS_DEPRECATED", "X"), "CUDNN_STATUS_DEPRECATED is not"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_difference_is_seen(tool, folder, what, capsys):
    change, message = CHANGES[what]
    assert tool.main([str(folder(change=change))]) == 1
    assert message in capsys.readouterr().out


def test_what_came_later_may_be_missing_before_it(tool, folder, capsys):
    def as_in_8(text):
        text = drop(text, r"cudnn\w+_v9", "cudnnGetLastErrorString", "cudnn(Graph|Ops|Adv)VersionCheck")
        text = re.sub(r"typedef enum \{(?:(?!typedef).)*\} cudnnCTCGradMode_t;", "", text, flags=re.S)
        text = drop(text, "cudnnGetMaxDeviceVersion")
        return re.sub(r",\s*CUDNN_DATA_FP8_E4M3 = 12.*?23", "", text, flags=re.S)

    assert tool.main([str(folder((8, 5, 0), as_in_8))]) == 0
    assert tool.main([str(folder((9, 28, 0), as_in_8))]) == 1
    out = capsys.readouterr().out
    for name in ("cudnnSetCTCLossDescriptor_v9", "cudnnCTCGradMode_t", "CUDNN_DATA_FP8_E5M3", "CUDNN_DATA_FP8_E4M3"):
        assert name in out


def test_what_went_may_be_missing_after_it(tool, folder):
    def as_in_9(text):
        return drop(text, r"cudnn\w+(Infer|Train)VersionCheck")

    assert tool.main([str(folder((9, 0, 0), as_in_9))]) == 0
    assert tool.main([str(folder((8, 5, 0), as_in_9))]) == 1


def test_a_new_member_is_worth_a_note(tool, folder, capsys):
    more = folder(change=lambda t: t.replace("CUDNN_DATA_FP8_E5M3 = 23", "CUDNN_DATA_FP8_E5M3 = 23, CUDNN_DATA_NEW"))
    assert tool.main([str(more)]) == 0
    assert "note: cudnnDataType_t has a CUDNN_DATA_NEW = 24" in capsys.readouterr().out


def test_no_header_is_said_and_no_failure(tool, monkeypatch, capsys):
    monkeypatch.setattr(tool, "installed", list)
    assert tool.main([]) == 0
    assert "no header found" in capsys.readouterr().out


def test_a_path_that_holds_no_header(tool, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        tool.main([str(tmp_path)])
    assert caught.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_warp_ctc(tool, tmp_path, capsys):
    text = (CDEF / "warpctc.h").read_text(encoding="utf-8")
    real = tmp_path / "ctc.h"
    text = text.replace("struct ctcOptions options", "ctcOptions info").replace(
        "uintptr_t num", "union { int x; }; int num"
    )
    text = re.sub(r"(?m)^(ctcStatus_t|int|const char) ", r"API_REFERENCE \1 ", text).replace(
        "const int *", "const int* const "
    )
    real.write_text(f"#define API_REFERENCE\n{text}", encoding="utf-8")
    assert tool.main([str(real)]) == 0
    real.write_text(text.replace("int minibatch,", ""), encoding="utf-8")
    assert tool.main([str(tmp_path)]) == 1
    assert "compute_ctc_loss" in capsys.readouterr().out


def test_the_installed_headers_agree(tool, capsys):
    if not tool.installed():
        pytest.skip("no cuDNN wheel with headers is installed here")
    status = tool.main([])
    assert status == 0, capsys.readouterr().out
