"""The functions in C that a compiled program of JAX calls: its results, what it refuses, and the structs of jaxlib."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'ctcbind[jax]'")

import jax.numpy as jnp  # noqa: E402
import jax_bits  # noqa: E402
from jax_bits import elsewhere, enable_x64, make  # noqa: E402
from test_native_threads import process  # noqa: E402

import ctcbind  # noqa: E402
from ctcbind.jax import ctc_loss, in_c, lattice_loss  # noqa: E402

rng, way = jax_bits.rng, jax_bits.way


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("way", ["in C"], indirect=True)  # it goes both
def test_both_ways_are_one(rng, monkeypatch, dtype, holes):
    """To the last bit, for the arithmetic is the same: under vmap, with frames in between that do not count."""
    with enable_x64(dtype is np.float64):
        args = list(make(rng, dtype=dtype))
        if holes:
            args[1] = (rng.random((4, 20)) < 0.2).astype(dtype)
        mapped = [np.stack([each, each[::-1]]) for each in args]
        along = rng.normal(size=mapped[0].shape).astype(dtype)
        along[:, 1, 0, :2] = 1e-41, -1e-42  # which XLA's threads take for zeros
        found = []
        for choice in (jax.lax.platform_dependent, elsewhere):
            monkeypatch.setattr(jax.lax, "platform_dependent", choice)
            of_one = jax.value_and_grad(lambda x: ctc_loss(x, *args[1:], blank_id=0).sum())
            of_many = jax.vmap(jax.value_and_grad(lambda x, *rest: ctc_loss(x, *rest).sum()))
            product_of_one, product_of_many = (
                jax.jit(lambda x, v, *rest, f=f: jax.jvp(lambda x: f(x, *rest)[1], (x,), (v,))[1])
                for f in (of_one, of_many)
            )
            products = product_of_one(args[0], along[0]), product_of_many(mapped[0], along, *mapped[1:])
            found.append(jax.tree.leaves((of_one(args[0]), jax.jit(of_many)(*mapped), products)))
        for one, other in zip(*found):
            assert one.dtype == other.dtype == dtype
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "float64"), ("float64", "float32")])
@pytest.mark.parametrize("given", ["nothing", "bonus", "prior", "both"])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("way", ["in C"], indirect=True)  # it goes both
def test_both_ways_are_one_on_the_lattice(rng, monkeypatch, dtypes, given, holes):
    """To the last bit: with a prior for each of the batches that vmap has put together."""
    of_x, of_others = dtypes
    options = {"topology": "simple" if holes else "ctc", "prior_weight": -0.7, "blank_id": int(rng.integers(7))}
    with enable_x64("float64" in dtypes):
        batches = [make(rng, dtype=of_x, blank=options["blank_id"]) for _ in range(2)]
        x, frames, labels, ends = (np.stack(each) for each in zip(*batches))
        if holes:
            frames = (rng.random(frames.shape) < 0.2).astype(of_x)
        added = {}
        if given in ("bonus", "both"):
            added["path_bonus"] = rng.normal(size=(2, 4, 20, 11)).astype(of_others)
            added["path_bonus"][rng.random((2, 4, 20, 11)) < 0.05] = -np.inf
        if given in ("prior", "both"):
            added["log_prior"] = rng.normal(size=(2, 7)).astype(of_others)

        def losses(x, added, *rest):
            return lattice_loss(x, *rest, **added, **options)

        def total(*args):
            values = losses(*args)
            return jnp.where(jnp.isinf(values), 0, values).sum()

        both, found = jax.value_and_grad(total, (0, 1)), []
        for choice in (jax.lax.platform_dependent, elsewhere):
            monkeypatch.setattr(jax.lax, "platform_dependent", choice)
            ways = jax.jit(jax.vmap(losses)), jax.jit(jax.vmap(both)), jax.vmap(both)
            found.append(jax.tree.leaves([function(x, added, frames, labels, ends) for function in ways]))
        for one, other in zip(*found, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("x64", [True, False])
def test_labels_wider_than_an_int32_do_not_wrap(rng, way, x64, dtype):
    with enable_x64(x64):
        args = make(rng)
        labels = args[2].astype(dtype)
        labels[0, 0] = 2**32 + 1  # whose low half is a label
        counts = np.zeros_like(args[3])
        # a ValueError, where a test before this one has run the same program
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=r"labels\[0\]\[0\] is \d{10}"):
            ctc_loss(args[0], args[1], labels, counts).block_until_ready()


@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint32"])
def test_labels_of_jaxs_own_that_are_wider_than_an_int32_do_not_wrap(rng, dtype):
    x, frames, labels, padded = make(rng)
    labels, counts = np.maximum(labels, 1).astype(dtype), np.zeros_like(padded)
    # an int32 would keep a label, or -1, of these
    wrong_ones = (2**31, -(2**32) + 1, -100) if dtype == "int64" else (2**31, 2**32 - 1)
    with enable_x64(dtype.endswith("64")):
        for wrong in wrong_ones:
            labels[0, 0] = wrong
            own, kept = jnp.asarray(labels), min(max(wrong, -(2**31)), 2**31 - 1)
            assert own.dtype == dtype
            words = rf"labels\[0\]\[0\] is ({wrong}|{kept})[;,]"
            with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=words):
                jax.jit(ctc_loss)(x, frames, own, counts).block_until_ready()


@pytest.mark.parametrize("way", ["in C"], indirect=True)
@pytest.mark.parametrize("product", [False, True])
def test_other_arrays_than_its_own_are_refused(product):
    in_c._register()
    x, p, y = jnp.zeros((2, 3, 4)), jnp.zeros((2, 3)), jnp.ones((2, 1), jnp.int32)
    losses, grad = jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct(x.shape, x.dtype)
    right, own = [x, p, y, jnp.zeros((2, 1)), *[x] * product], (grad,) if product else (losses, grad)
    target = "ctcbind_hessian_product" if product else "ctcbind_loss"

    def call(arrays, shapes=own, **attributes):
        return jax.block_until_ready(jax.ffi.ffi_call(target, shapes)(*arrays, **attributes))

    assert len(call(right, blank=np.int32(0))) == len(own)
    wrong = [
        (right[:-1], {}),
        ([*right, x], {}),
        (right, {"shapes": own[:-1] or (losses,)}) if product else (right, {"shapes": (losses, losses)}),
        (right, {"shapes": (grad, losses)}),
        (right, {"shapes": (losses, grad, grad)}),
        *[([*right[:4], each], {}) for each in (x[:, :2], x[0], p, x.astype(jnp.int32)) if product],
        ([x.astype(jnp.float16), *right[1:]], {}),
        ([x[0], *right[1:]], {}),
        ([x, p[:, :2], *right[2:]], {}),
        ([x, p, y.astype(jnp.float32), *right[3:]], {}),
        ([x, p, y[:1], *right[3:]], {}),
        ([*right[:3], jnp.zeros((2, 2)), *right[4:]], {}),
        (right, {"blank": np.int32(4)}),
        (right, {"blank": np.int32(-1)}),
        (right, {"blank": np.float32(2.5)}),  # no int32
    ]
    for arrays, changes in wrong:
        words = f"ctcbind_{'product' if product else 'loss'} was called with other arrays than its own"
        with pytest.raises(jax.errors.JaxRuntimeError, match=words):
            call(arrays, **{"blank": np.int32(0), **changes})


@pytest.mark.parametrize("way", ["in C"], indirect=True)
def test_other_arrays_than_those_of_a_lattice_are_refused():
    in_c._register()
    x, p, y = jnp.zeros((2, 3, 4)), jnp.zeros((2, 3)), jnp.ones((2, 1), jnp.int32)
    batch, bonus, prior = [x, p, y, jnp.zeros((2, 1))], jnp.zeros((2, 3, 3)), jnp.zeros(4)
    sizes = {"losses": (2,), "grad": x.shape, "counts": (2, 4), "gamma": bonus.shape}
    every = losses, grad, counts, gamma = [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes.values()]
    options = {"blank": np.int32(0), "topology": np.int32(0), "weight": np.float64(1)}

    def call(arrays, shapes, **attributes):
        return jax.block_until_ready(jax.ffi.ffi_call("ctcbind_lattice", shapes)(*arrays, **attributes))

    for added in ([], [bonus], [prior], [bonus, prior]):
        for shapes in ([losses], [losses, grad, counts]):
            assert len(call([*batch, *added], shapes, **options)) == len(shapes)
    assert len(call([*batch, bonus], every, **options)) == 4
    wrong = [
        (batch[:-1], [losses], {}),
        ([*batch, prior, bonus], [losses], {}),
        ([*batch, bonus, bonus], [losses], {}),
        ([*batch, bonus, prior, prior], [losses], {}),
        *[([*batch, each], [losses], {}) for each in (bonus[:, :2], bonus[:, :, :2], bonus[:1], bonus.astype("int32"))],
        *[([*batch, each], [losses], {}) for each in (prior[:3], prior[None], prior.astype("float16"), prior[0])],
        (batch, [grad], {}),
        (batch, [losses, grad], {}),
        (batch, [losses, counts, grad], {}),
        (batch, [losses, grad, grad], {}),
        (batch, [losses, losses, counts], {}),
        (batch, every, {}),
        ([*batch, prior], every, {}),
        ([*batch, bonus], [losses, grad, counts, grad], {}),
        ([*batch, bonus], [*every, gamma], {}),
        (batch, [jax.ShapeDtypeStruct((2,), jnp.float16)], {}),
        (batch, [losses], {"blank": np.int32(4)}),
        (batch, [losses], {"weight": np.float32(2.5)}),  # of no other number that is equal
        (batch, [losses], {"topology": np.float64(1)}),
    ]
    for arrays, shapes, changes in wrong:
        words = "ctcbind_lattice was called with other arrays than its own"
        with pytest.raises(jax.errors.JaxRuntimeError, match=words):
            call(arrays, shapes, **{**options, **changes})


@pytest.mark.parametrize("way", ["in C"], indirect=True)
def test_posteriors_too_small_to_be_normal_are_kept():
    """XLA's threads take them for zeros, which the others do not that compute samples."""
    in_c._register()
    x, ends, labels, bonus = np.zeros((1, 4, 3)), np.zeros((1, 4)), np.array([[1, 2]], np.int32), np.zeros((1, 4, 5))
    bonus[0, 1, 2] = -90
    shapes = [jax.ShapeDtypeStruct(size, np.float32) for size in ((1,), x.shape, (1, 3), bonus.shape)]
    options = {"blank": np.int32(0), "topology": np.int32(0), "weight": np.float64(1)}
    call = jax.jit(lambda *arrays: jax.ffi.ffi_call("ctcbind_lattice", shapes)(*arrays, **options))
    *_, gamma = call(*map(np.float32, (x, ends)), labels, np.float32(ends[:, :2]), np.float32(bonus))
    right = ctcbind.posteriors(np.float32(x), [[1, 2]], layout="NTC", path_bonus=np.float32(bonus))
    assert 0 < right[0, 1, 2] < np.finfo(np.float32).tiny
    np.testing.assert_array_equal(gamma, right)


@pytest.mark.parametrize("way", ["in C"], indirect=True)
def test_exported_programs(rng):
    """With what docs/frameworks.md says, and nothing more."""
    from jax import export

    x, *rest = (jnp.asarray(each) for each in make(rng, B=2, T=11, N=3))
    prior = jnp.asarray(rng.normal(size=7), jnp.float32)
    functions = {
        "ctcbind_loss": jax.grad(lambda x: ctc_loss(x, *rest).sum()),
        "ctcbind_hessian_product": lambda x: jax.jvp(jax.grad(lambda x: ctc_loss(x, *rest).sum()), (x,), (x,))[1],
        "ctcbind_lattice": jax.grad(lambda x: lattice_loss(x, *rest, log_prior=prior).sum()),
    }
    for name, function in functions.items():
        needed = {name, "ctcbind_loss"} if "product" in name else {name}
        checks = [export.DisabledSafetyCheck.custom_call(each) for each in needed]
        exported = export.export(jax.jit(function), platforms=["cpu"], disabled_checks=checks)(x)
        np.testing.assert_array_equal(jax.jit(exported.call)(x), jax.jit(function)(x))
        with pytest.raises(ValueError, match=name):
            export.export(jax.jit(function), platforms=["cpu"])(x)


def test_threads_follow_set_num_threads(monkeypatch):
    from ctcbind import threads

    told = []
    monkeypatch.setattr(threads, "_told", [])
    ctcbind.set_num_threads(3)
    try:
        threads.tell_threads(told.append)
        ctcbind.set_num_threads(2)
        ctcbind.set_num_threads(None)
    finally:
        ctcbind.set_num_threads(None)
    assert told == [3, 2, ctcbind.get_num_threads(), ctcbind.get_num_threads()]


def test_what_programs_call_hears_of_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from ctcbind import threads
    from ctcbind.engines import native_xla

    told: list[int] = []
    monkeypatch.setattr(threads, "_told", [])
    monkeypatch.setattr(native_xla.native_xla, "set_threads", told.append)
    monkeypatch.setattr(native_xla, "_ready", native_xla._ready.__wrapped__)
    native_xla.loss_function()
    assert told == [ctcbind.get_num_threads()]


@pytest.mark.parametrize("way", ["in C"], indirect=True)  # of the process, which has no other
def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    code = """
        import jax, numpy as np, ctcbind
        from ctcbind.jax import ctc_loss
        for function in (ctc_loss, jax.jit(ctc_loss)):
            try:
                function(np.zeros((1, 4, 3), np.float32), np.zeros((1, 4)), np.array([[1]]), np.zeros((1, 1)))
            except ctcbind.InvalidInput as problem:
                print(problem.rule)
    """
    done = process(code, env={**os.environ, "CTCBIND_ISA": "none such"})
    assert (done.returncode, done.stdout) == (0, 2 * "CTCBIND_ISA\n"), done.stderr


def test_the_declarations_are_jaxlibs(tmp_path):
    """Sizes and offsets of the structs of csrc/xla.h, those of the header that this jaxlib has."""
    sources = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "csrc")
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None or not os.path.isdir(sources):
        pytest.skip("no C++ compiler, or no checkout")
    fields = {
        "xla_extension XLA_FFI_Extension_Base": "type next",
        "xla_version XLA_FFI_Api_Version": "major_version minor_version",
        "xla_metadata XLA_FFI_Metadata": "version=api_version traits",
        "xla_metadata_extension XLA_FFI_Metadata_Extension": "base=extension_base metadata",
        "xla_error XLA_FFI_Error_Create_Args": "message code=errc",
        "xla_api XLA_FFI_Api": "version=api_version create_error=XLA_FFI_Error_Create",
        "xla_buffer XLA_FFI_Buffer": "dtype data rank dims",
        "xla_values XLA_FFI_Args": "size types values=args",
        "xla_values XLA_FFI_Rets": "size types values=rets",
        "xla_span XLA_FFI_ByteSpan": "ptr len",
        "xla_scalar XLA_FFI_Scalar": "dtype value",
        "xla_attributes XLA_FFI_Attrs": "size types names values=attrs",
        "xla_call XLA_FFI_CallFrame": "api context=ctx stage arguments=args results=rets attributes=attrs",
    }
    checks = []
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    renamed = "XLA_FFI_InternalExtension" in header.read_text(encoding="utf-8")  # from jaxlib 0.11.1 on
    for structs, names in fields.items():
        own, theirs = structs.split()
        if renamed and theirs == "XLA_FFI_Extension_Base":
            theirs = "XLA_FFI_InternalExtension"
        for name in names.split():
            mine, _, other = name.partition("=")
            other = other or mine
            checks.append(f"static_assert(offsetof({own}, {mine}) == offsetof({theirs}, {other}));")
            checks.append(f"static_assert(sizeof((({own} *)0)->{mine}) == sizeof((({theirs} *)0)->{other}));")
    numbers = {
        "XLA_METADATA": "XLA_FFI_Extension_Metadata",
        "XLA_BUFFER": "XLA_FFI_ArgType_BUFFER",
        "XLA_SCALAR": "XLA_FFI_AttrType_SCALAR",
        "XLA_EXECUTE": "XLA_FFI_ExecutionStage_EXECUTE",
        "XLA_INT32": "XLA_FFI_DataType_S32",
        "XLA_FLOAT32": "XLA_FFI_DataType_F32",
        "XLA_FLOAT64": "XLA_FFI_DataType_F64",
        "XLA_INVALID_ARGUMENT": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
        "XLA_RESOURCE_EXHAUSTED": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
        "XLA_INTERNAL": "XLA_FFI_Error_Code_INTERNAL",
    }
    checks += [f"static_assert((int){mine} == (int){other});" for mine, other in numbers.items()]
    program = '#include "xla/ffi/api/c_api.h"\n#include "xla.h"\n' + "\n".join(checks) + "\n"

    def compiled(text):
        (tmp_path / "check.cc").write_text(text)
        command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{jax.ffi.include_dir()}", f"-I{sources}"]
        done = subprocess.run([*command, str(tmp_path / "check.cc")], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert compiled(program) == (0, "")
    assert compiled(program.replace("(int)XLA_SCALAR ==", "(int)XLA_SCALAR !="))[0] != 0
