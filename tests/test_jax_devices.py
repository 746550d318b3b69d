"""The CTC loss for JAX on several devices, which are parts of this processor, in processes of their own."""

import os
import subprocess
import sys

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'ctcbind[jax]'")

PREPARED = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from ctcbind.jax import ctc_loss

"""


def run(script, devices=2):
    away = os.path.dirname(sys.executable)  # where no other ctcbind is found
    prepared = PREPARED.replace("device_count=2", f"device_count={devices}")
    subprocess.run([sys.executable, "-c", prepared + script], check=True, timeout=300, cwd=away)


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="jax.shard_map came with JAX 0.6.1")
def test_shard_map_divides_it():
    """Each device its part of the batch; what is replicated gets the gradients of all."""
    run("""
rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(4, 9, 5)), jnp.float32)
labels, padding, frames = jnp.array([[1, 2, 3], [2, 2, 1], [4, 1, 1], [3, 1, 2]]), jnp.zeros((4, 3)), jnp.zeros((4, 9))
mesh = Mesh(np.array(jax.devices()), ("d",))

def over(function, spread, out):
    given = tuple(P("d") if each else P() for each in spread)
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=out))

def loss(weight, *batch):
    return ctc_loss(batch[0] @ weight, *batch[1:]).sum()

def shared(weight, *batch):
    return jax.lax.psum(loss(weight, *batch), "d")

def close(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=36 * 2e-6)  # as many frames, each exact to 2e-6

everything = x, frames, labels, padding
spread, weight = (0, 1, 1, 1, 1), jnp.eye(5) + 0.1
right = jax.grad(loss)(weight, *everything)
close(jax.grad(over(shared, spread, P()))(weight, *everything), right)
close(over(jax.grad(shared), spread, P())(weight, *everything), right)
np.testing.assert_array_equal(over(ctc_loss, (1, 1, 1, 1), P("d"))(*everything), ctc_loss(*everything))
curved = lambda f: lambda w, *batch: (jax.grad(f)(w, *batch) ** 2).sum()
close(over(jax.grad(curved(shared)), spread, P())(weight, *everything), jax.grad(curved(loss))(weight, *everything))

def product(f):
    return lambda w, *batch: jax.jvp(lambda w: jax.grad(f)(w, *batch), (w,), (w * w,))[1]

right = product(loss)(weight, *everything)
close(over(product(shared), spread, P())(weight, *everything), right)
close(product(over(shared, spread, P()))(weight, *everything), right)
slope = lambda f: lambda w, *batch: jax.jvp(lambda w: f(w, *batch), (w,), (w,))[1]
np.testing.assert_allclose(
    over(slope(shared), spread, P())(weight, *everything), slope(loss)(weight, *everything), rtol=1e-5
)

first = x[:2], frames[:2], padding[:2]
both = lambda q: sum(ctc_loss(q, first[1], each, first[2]).sum() for each in (labels[:2], labels[2:]))
alone = lambda q, each: jax.lax.psum(ctc_loss(q, first[1], each, first[2]).sum(), "d")
close(over(jax.grad(alone), (0, 1), P())(first[0], labels), jax.grad(both)(first[0]))
try:
    over(lambda q, each: ctc_loss(q, first[1], each, first[2]), (0, 1), P())(first[0], labels)
except ValueError as error:
    assert "replication" in str(error), error
else:
    raise AssertionError("a loss that differs by device was taken for one that does not")
""")


BATCH = """
rng = np.random.default_rng(0)
x = rng.normal(size=(4, 10, 6)).astype(np.float32)
rest = np.zeros((4, 10)), rng.integers(1, 6, (4, 3)).astype(np.int32), np.zeros((4, 3))
mean = lambda x, *rest: ctc_loss(x, *rest).mean()
both = jax.value_and_grad(mean)
right = both(x, *rest)
curved = lambda x, *rest: (jax.grad(mean)(x, *rest) ** 2).sum()
right_curved = jax.grad(curved)(x, *rest)
product = lambda x, *rest: jax.jvp(lambda x: jax.grad(mean)(x, *rest), (x,), (x,))[1]
right_product = product(x, *rest)
slopes = lambda x, *rest: jax.jvp(lambda x: ctc_loss(x, *rest), (x,), (x,))[1]
right_slopes = slopes(x, *rest)
ways = P("d"), P(None, "d"), P(None, None, "d"), P("d", None, None), P()

def check(got, want=right, sharding=None):
    for a, b in zip(got, want):
        np.testing.assert_array_equal(a, b)
    assert sharding is None or got[1].sharding.is_equivalent_to(sharding, 3), got[1].sharding

def gathers(step, *args):
    return "all-gather" in step.lower(*args).compile().as_text()
"""


def test_jit_divides_what_is_sharded_along_the_batch():
    """Nothing is brought together, and the gradient lies where the logits do; other divisions are undone."""
    run(
        BATCH
        + """
mesh = Mesh(np.array(jax.devices()), ("d",))
along = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
step = jax.jit(both)
for spec in ways:
    for others in P("d"), P():
        check(step(along(x, spec), *(along(each, others) for each in rest)))
divided = along(x, P("d")), *(along(each, P("d")) for each in rest)
assert not gathers(step, *divided)
check(step(*divided), sharding=divided[0].sharding)
check(both(*divided))
check(jax.jit(both, in_shardings=NamedSharding(mesh, P("d")))(x, *rest), sharding=divided[0].sharding)
losses = jax.jit(ctc_loss)(*divided)
np.testing.assert_array_equal(losses, ctc_loss(x, *rest))
assert losses.sharding.spec == P("d")

twice = jnp.stack([x, 2 * x])
mapped = jax.vmap(both, in_axes=(0, None, None, None))
check(jax.jit(mapped)(along(twice, P("d")), *rest), mapped(twice, *rest))
two_more = jax.vmap(mapped, in_axes=(1, None, None, None))
check(jax.jit(two_more)(jnp.stack([twice, -twice], 1), *rest), two_more(jnp.stack([twice, -twice], 1), *rest))
lone = jax.vmap(lambda y: both(x[0][None], rest[0][:1], y[None], rest[2][:1]))
check(jax.jit(lone)(along(rest[1], P("d"))), lone(rest[1]))

np.testing.assert_array_equal(jax.jit(jax.grad(curved))(*divided), right_curved)
np.testing.assert_array_equal(jax.grad(curved)(*divided), right_curved)
np.testing.assert_array_equal(jax.jit(product)(*divided), right_product)
assert not gathers(jax.jit(product), *divided)
assert jax.jit(product)(*divided).sharding.is_equivalent_to(divided[0].sharding, 3)
assert not gathers(jax.jit(slopes), *divided)
np.testing.assert_allclose(jax.jit(slopes)(*divided), right_slopes, rtol=1e-5)
"""
    )


@pytest.mark.skipif(not hasattr(jax.sharding, "reshard"), reason="JAX 0.6 leaves the shardings to its compiler")
def test_shardings_in_types():
    run(
        BATCH
        + """
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
along = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
step = jax.jit(both)
with jax.set_mesh(mesh):
    for spec in ways:
        for others in P("d"), P():
            args = along(x, spec), *(along(each, others) for each in rest)
            check(step(*args), sharding=args[0].sharding)
            check(both(*args), sharding=args[0].sharding)
    divided = along(x, P("d")), *(along(each, P("d")) for each in rest)
    assert not gathers(step, *divided)
    losses = jax.jit(ctc_loss)(*divided)
    np.testing.assert_array_equal(losses, ctc_loss(x, *rest))
    assert jax.typeof(losses).sharding.spec == P("d")
    np.testing.assert_array_equal(jax.jit(jax.grad(curved))(*divided), right_curved)
    np.testing.assert_array_equal(jax.jit(product)(*divided), right_product)
    np.testing.assert_allclose(jax.jit(slopes)(*divided), right_slopes, rtol=1e-5)
"""
    )


def test_a_batch_that_does_not_come_out_even():
    """Five samples on two devices: XLA would fill them up to six."""
    run(
        BATCH
        + """
mesh = Mesh(np.array(jax.devices()), ("d",))
longer = [np.concatenate([each, each[:1]]) for each in (x, *rest)]
odd = lambda x, *rest: both(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("d"))), *rest)
check(jax.jit(odd)(*longer), both(*longer))
odd = lambda x, *rest: product(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("d"))), *rest)
np.testing.assert_array_equal(jax.jit(odd)(*longer), product(*longer))
"""
    )


def test_a_batch_along_two_axes_of_a_mesh():
    """Eight samples come out even on four devices; six do not, though they would on two."""
    run(
        BATCH
        + """
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("d", "e"))
sharding = NamedSharding(mesh, P(("d", "e")))
spread = lambda x, *rest: both(jax.lax.with_sharding_constraint(x, sharding), *rest)
for size in 8, 6:
    longer = [np.concatenate([each, each])[:size] for each in (x, *rest)]
    check(jax.jit(spread)(*longer), both(*longer))
divided = [jax.device_put(np.concatenate([each, each]), sharding) for each in (x, *rest)]
assert not gathers(jax.jit(both), *divided)
check(jax.jit(both)(*divided), both(*map(np.asarray, divided)), divided[0].sharding)
""",
        devices=4,
    )


@pytest.mark.skipif(not hasattr(jax.sharding, "reshard"), reason="JAX 0.6 leaves the shardings to its compiler")
def test_shardings_in_types_of_samples_and_classes():
    """The samples stay where they are, the classes are brought together."""
    run(
        BATCH
        + """
mesh = jax.make_mesh((2, 2), ("d", "e"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
with jax.set_mesh(mesh):
    specs = P("d", None, "e"), P("d"), P("d"), P("d")
    args = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip((x, *rest), specs)]
    losses = jax.jit(ctc_loss)(*args)
    assert jax.typeof(losses).sharding.spec == P("d")
    np.testing.assert_array_equal(losses, ctc_loss(x, *rest))
    check(jax.jit(both)(*args), sharding=args[0].sharding)
""",
        devices=4,
    )


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="jax.set_mesh came with JAX 0.7.1")
@pytest.mark.parametrize("axes", ["Auto", "Explicit"])
def test_a_mesh_that_divides_nothing(axes):
    run(
        BATCH
        + f"""
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.{axes},))
with jax.set_mesh(mesh):
    check(jax.jit(both)(x, *rest))
    check(jax.jit(lambda *each: both(2 * each[0] / 2, *each[1:]))(x, *rest))
"""
    )


@pytest.mark.skipif(not hasattr(jax.sharding, "reshard"), reason="JAX 0.6 leaves the shardings to its compiler")
def test_shardings_in_types_of_a_mesh_that_is_not_set():
    run(
        BATCH
        + """
from ctcbind.jax import lattice_loss
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
along = lambda each, spec: jax.device_put(each, NamedSharding(mesh, spec))
for spec in P(None, "d"), P(None, None, "d"):
    args = along(x, spec), *(along(each, P()) for each in rest)
    for function in ctc_loss, lattice_loss:
        np.testing.assert_array_equal(jax.jit(function)(*args), function(x, *rest))
"""
    )


@pytest.mark.parametrize("divided", ["by jit", "by shard_map"])
def test_a_wrong_label_of_one_device_is_told_before_the_others_wait_for_it(divided):
    """XLA ends the process in the end, without what a device's error says."""
    if divided == "by shard_map" and not hasattr(jax, "shard_map"):
        pytest.skip("jax.shard_map came with JAX 0.6.1")
    script = f"""
mesh = Mesh(np.array(jax.devices()), ("d",))
labels = np.tile([1, 2, 3], (4, 1))
labels[3, 0] = 9
args = np.zeros((4, 9, 5), np.float32), np.zeros((4, 9)), labels, np.zeros((4, 3))
step = jax.shard_map(ctc_loss, mesh=mesh, in_specs=P("d"), out_specs=P("d")) if {"map" in divided} else ctc_loss
try:
    jax.jit(step)(*(jax.device_put(each, NamedSharding(mesh, P("d"))) for each in args)).block_until_ready()
except Exception as error:
    assert "labels[1][0] is 9" in str(error), error
"""
    away = os.path.dirname(sys.executable)
    command = [sys.executable, "-c", PREPARED + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=away)
    assert not done.returncode, done.stderr
    assert "ctcbind.jax: InvalidInput: labels[1][0] is 9, but there are 5 classes" in done.stderr


SAVED = """
import pickle, sys
from jax.experimental import serialize_executable
if len(sys.argv) > 2:
    from ctcbind.jax import lattice_loss
    args = np.zeros((2, 9, 5), np.float32), np.zeros((2, 9)), np.ones((2, 1), np.int32), np.zeros((2, 1))
    function = {
        "ctc_loss": ctc_loss,
        "lattice_loss": jax.grad(lambda x, *rest: lattice_loss(x, *rest, log_prior=np.arange(5.0)).sum()),
    }[sys.argv[2]]
    program = serialize_executable.serialize(jax.jit(function).lower(*args).compile())
    with open(sys.argv[1], "wb") as file:
        pickle.dump((program, args, np.asarray(function(*args))), file)
else:
    with open(sys.argv[1], "rb") as file:
        program, args, right = pickle.load(file)
    np.testing.assert_array_equal(serialize_executable.deserialize_and_load(*program)(*args), right)
"""


@pytest.mark.parametrize("function", ["ctc_loss", "lattice_loss"])
def test_a_saved_program_runs_where_none_was_traced(function, tmp_path):
    alone = PREPARED.replace("device_count=2", "device_count=1")
    for more in ([function], []):
        command = [sys.executable, "-c", alone + SAVED, str(tmp_path / "program"), *more]
        subprocess.run(command, check=True, timeout=300, cwd=os.path.dirname(sys.executable))


def test_results_of_numpys_calls_lie_where_the_logits_lie():
    """And not where JAX puts new arrays, as in a GPU's memory where it has one."""
    run("""
import ctcbind
first, second = jax.devices()
labels = [[1, 2], [3]]

def placed(call, where):
    x = jax.device_put(np.zeros((6, 2, 5), np.float32), where)
    return [each.devices() for each in jax.tree.leaves(call(x)) if isinstance(each, jax.Array)]

ctc = ctcbind.CTCLoss()
calls = [
    lambda x: ctcbind.ctc_loss(x, labels),
    lambda x: ctcbind.ctc_loss_and_grad(x, labels, reduction="sum"),
    *3 * [lambda x: tuple(ctc(x, labels))],
    lambda x: ctcbind.align(x, labels),
    lambda x: ctcbind.posteriors(x, labels),
]
for call in calls:
    assert placed(call, second) and all(each == {second} for each in placed(call, second))
    with jax.default_device(second):
        assert all(each == {first} for each in placed(call, first))
    mesh = Mesh(np.array(jax.devices()), ("d",))
    assert all(each == {first} for each in placed(call, NamedSharding(mesh, P(None, "d"))))
""")


LATTICE = """
from ctcbind.jax import lattice_loss
rng = np.random.default_rng(0)
x, bonus, prior = (rng.normal(size=size).astype(np.float32) for size in ((4, 10, 6), (4, 10, 7), (6,)))
rest = np.zeros((4, 10)), rng.integers(1, 6, (4, 3)).astype(np.int32), np.zeros((4, 3))
mean = lambda x, bonus, prior, *rest: lattice_loss(x, *rest, path_bonus=bonus, log_prior=prior).mean()
both = jax.value_and_grad(mean, (0, 1, 2))
right = jax.tree.leaves(both(x, bonus, prior, *rest))

def check(got):
    for a, b in zip(jax.tree.leaves(got), right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
"""


def test_the_lattice_of_what_is_sharded():
    """Along the batch it stays so, with its gradients; other divisions are undone, and uneven ones."""
    run(
        LATTICE
        + """
mesh = Mesh(np.array(jax.devices()), ("d",))
along = lambda each, *spec: jax.device_put(each, NamedSharding(mesh, P(*spec)))
divided = along(x, "d"), along(bonus, "d"), along(prior), *(along(each, "d") for each in rest)
compiled = jax.jit(both)
check(got := compiled(*divided))
check(both(*divided))
assert [each.sharding.spec for each in got[1][:2]] == [P("d"), P("d")], got[1]
assert "all-gather" not in compiled.lower(*divided).compile().as_text()
check(compiled(along(x, None, "d"), along(bonus, None, None), along(prior, "d"), *divided[3:]))
check(compiled(along(x), along(bonus, "d"), along(prior, "d"), *rest))

three = lambda x, bonus, prior, *rest: mean(x[:3], bonus[:3], prior, *(each[:3] for each in rest))
uneven = jax.value_and_grad(three, (0, 1, 2))
right = jax.tree.leaves(uneven(x, bonus, prior, *rest))
check(jax.jit(uneven)(*divided))

two = np.stack([prior, -prior])
losses = jax.vmap(lambda x, bonus, prior: lattice_loss(x, *rest, path_bonus=bonus, log_prior=prior))
right = [losses(np.stack([x, -x]), np.stack([bonus, -bonus]), two)]
check(jax.jit(losses)(*(along(each, "d") for each in (np.stack([x, -x]), np.stack([bonus, -bonus]), two))))
check(jax.jit(losses)(*(along(each, None, "d") for each in (np.stack([x, -x]), np.stack([bonus, -bonus]), two))))

bonus[3, 1, 2] = np.nan
losses = jax.jit(lambda x, bonus: lattice_loss(x, *rest, path_bonus=bonus))
try:
    losses(divided[0], along(bonus, "d")).block_until_ready()
except Exception as error:
    assert "path_bonus[1][1][2] is nan" in str(error), error
else:
    raise AssertionError("not refused")
"""
    )


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="jax.shard_map came with JAX 0.6.1")
def test_the_lattice_under_shard_map():
    """A prior that all devices share gets the gradients of all."""
    run(
        LATTICE
        + """
mesh = Mesh(np.array(jax.devices()), ("d",))
specs = P("d"), P("d"), P(), P("d"), P("d"), P("d")
inner = lambda *args: jax.lax.pmean(mean(*args), "d")
over = jax.shard_map(inner, mesh=mesh, in_specs=specs, out_specs=P())
check(jax.value_and_grad(over, (0, 1, 2))(x, bonus, prior, *rest))
"""
    )


@pytest.mark.skipif(not hasattr(jax.sharding, "reshard"), reason="JAX 0.6 leaves the shardings to its compiler")
def test_the_lattice_of_shardings_in_types():
    run(
        LATTICE
        + """
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
with jax.set_mesh(mesh):
    for spec in P("d"), P(None, None), P():
        along = lambda each: jax.device_put(each, NamedSharding(mesh, spec if each.ndim > len(spec) - 1 else P()))
        divided = [along(each) for each in (x, bonus, prior, *rest)]
        check(jax.jit(both)(*divided))
        check(both(*divided))
        if spec == P("d"):
            assert all(each.sharding.spec[0] == "d" for each in jax.jit(both)(*divided)[1][:2])
    mixed = along(x), jax.device_put(bonus, P(None, "d")), jax.device_put(prior, P("d")), *rest
    check(jax.jit(both)(*mixed))
"""
    )


MAPPED = """
from ctcbind.jax import lattice_loss
rng = np.random.default_rng(0)
x, bonus, prior = (rng.normal(size=(4, *size)).astype(np.float32) for size in ((4, 10, 6), (4, 10, 7), (6,)))
rest = np.zeros((4, 10), np.float32), rng.integers(1, 6, (4, 3)).astype(np.int32), np.zeros((4, 3), np.float32)
axes = (jax.sharding.AxisType.Explicit,) * 2
mesh = jax.make_mesh((2, 2), ("d", "e"), axis_types=axes)
along = lambda each, *spec: jax.device_put(each, NamedSharding(mesh, P(*spec)))
"""


@pytest.mark.skipif(not hasattr(jax.sharding, "reshard"), reason="JAX 0.6 leaves the shardings to its compiler")
def test_vmap_over_what_is_sharded_in_types():
    """Where nothing else is mapped, or all is, over one axis of the mesh or both."""
    run(
        MAPPED
        + """
functions = {
    lambda x: ctc_loss(x, *rest): (x,),
    lambda x: lattice_loss(x, *rest): (x,),
    lambda prior: lattice_loss(x[0], *rest, log_prior=prior): (prior,),
    lambda x, bonus, prior: lattice_loss(x, *rest, path_bonus=bonus, log_prior=prior): (x, bonus, prior),
}
with jax.set_mesh(mesh):
    for function, args in functions.items():
        slopes = lambda *args: jax.grad(lambda *args: function(*args).sum(), tuple(range(len(args))))(*args)
        for each in function, slopes:
            right = jax.tree.leaves(jax.vmap(each)(*args))
            for spec in "d", ("d", "e"):
                got = jax.tree.leaves(jax.jit(jax.vmap(each))(*(along(arg, spec) for arg in args)))
                for a, b in zip(got, right, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
""",
        devices=4,
    )


@pytest.mark.skipif(not hasattr(jax.sharding, "reshard"), reason="JAX 0.6 ends the process")
def test_shard_map_over_one_axis_of_two():
    """Along the other one the batch is divided too, by types."""
    run(
        MAPPED
        + """
args = x[0], *rest
with jax.set_mesh(mesh):
    for loss in ctc_loss, lattice_loss:
        inner = lambda *args: jax.value_and_grad(lambda x: loss(x, *args[1:]).sum())(args[0])[1]
        for function in loss, inner:
            over = jax.shard_map(function, in_specs=(P("d"),) * 4, out_specs=P("d"), axis_names={"d"})
            got = jax.jit(over)(*(along(each, ("d", "e")) for each in args))
            np.testing.assert_allclose(got, function(*args), rtol=1e-6, atol=1e-6)
""",
        devices=4,
    )


@pytest.mark.skipif(hasattr(jax.sharding, "reshard"), reason="only JAX 0.6 ends the process")
@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="jax.shard_map came with JAX 0.6.1")
def test_shard_map_over_one_axis_of_two_is_refused():
    run(
        """
mesh = jax.make_mesh((2, 2), ("d", "e"))
over = jax.shard_map(ctc_loss, mesh=mesh, in_specs=(P("d"),) * 4, out_specs=P("d"), axis_names={"d"})
try:
    jax.jit(over)(np.zeros((8, 8, 5)), np.zeros((8, 8)), np.ones((8, 2), int), np.zeros((8, 2)))
except NotImplementedError as error:
    assert "map over all of its axes, d, e" in str(error), error
else:
    raise AssertionError("not refused")
""",
        devices=4,
    )
